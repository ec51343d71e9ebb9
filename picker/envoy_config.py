"""The shipped Envoy configurations (`envoy/`), with other addresses put in."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Any

import yaml

NAMES = ("fail-open", "fail-closed", "full-duplex", "gateway", "original-dst")
LISTEN, ADMIN, PICKER = "127.0.0.1:10000", "127.0.0.1:9901", "127.0.0.1:9002"
"""The addresses in the files as they stand."""

_HERE = Path(__file__).parent
_HOST_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


class BadAddress(ValueError):
    """Not a host:port that Envoy can use in this place. The message says which and why."""


def load(name: str, *, listen: str = LISTEN, admin: str = ADMIN, picker: str = PICKER) -> dict[str, Any]:
    """The bootstrap `name`, parsed. Arguments and errors as for `text`."""
    config: dict[str, Any] = yaml.safe_load(text(name, listen=listen, admin=admin, picker=picker))
    return config


def text(name: str, *, listen: str = LISTEN, admin: str = ADMIN, picker: str = PICKER) -> str:
    """The file `name`, comments and all, with these host:port addresses in place of the defaults.

    The picker may be several, with commas between: one for each process. One with a host name is looked up in DNS.
    Raises BadAddress, and FileNotFoundError for a name that is not shipped.
    """
    pickers = [_split("picker", address) for address in picker.split(",")]
    changes = {
        _socket_address(*_split("listen", LISTEN)): _socket_address(*_split_ip("listen", listen)),
        _socket_address(*_split("admin", ADMIN)): _socket_address(*_split_ip("admin", admin)),
        _endpoint(*_split("picker", PICKER)): "".join(_endpoint(host, port) for host, port in pickers),
    }
    if not all(_is_ip(host) for host, _ in pickers):
        # The picker's cluster is the only static one.
        changes["type: STATIC"] = "type: STRICT_DNS"
    # In one pass: what is put in may look like another default.
    return re.sub("|".join(map(re.escape, changes)), lambda found: changes[found[0]], _path(name).read_text())


def summary(name: str) -> str:
    """The first line of a file, for a list."""
    return _path(name).read_text().partition("\n")[0].removeprefix("# ")


def _path(name: str) -> Path:
    if name not in NAMES:
        raise FileNotFoundError(f"{name!r} is not shipped; there are {', '.join(NAMES)}")
    # In a wheel the files lie inside the package, in a checkout at the top of the repository.
    inside = _HERE / "_envoy" / f"{name}.yaml"
    return inside if inside.is_file() else _HERE.parent / "envoy" / f"{name}.yaml"


def _split(option: str, address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (_is_ip(host) or _HOST_NAME.fullmatch(host)) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadAddress(f"{option}: {address!r} is not host:port, such as 127.0.0.1:9002 or [::1]:9002")
    return host, int(port)


def _split_ip(option: str, address: str) -> tuple[str, int]:
    host, port = _split(option, address)
    if not _is_ip(host):
        raise BadAddress(f"{option}: {host!r} is a name; Envoy listens on IP addresses only")
    return host, port


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _socket_address(host: str, port: int) -> str:
    # A colon would end a plain scalar here.
    shown = f'"{host}"' if ":" in host else host
    return f"{{address: {shown}, port_value: {port}}}"


def _endpoint(host: str, port: int) -> str:
    """The line of an endpoint in a cluster."""
    return f"        - endpoint: {{address: {{socket_address: {_socket_address(host, port)}}}}}\n"
