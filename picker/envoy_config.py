"""The shipped Envoy configurations (`envoy/`), with other addresses put in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

NAMES = ("fail-open", "fail-closed", "full-duplex")
_HERE = Path(__file__).parent


def load(name: str, *, listen: str, admin: str, picker: str) -> dict[str, Any]:
    """The bootstrap `name` with these host:port addresses in place of the defaults.

    Raises FileNotFoundError for a name that is not shipped.
    """
    config: dict[str, Any] = yaml.safe_load(_path(name).read_text())
    resources = config["static_resources"]
    _set(config["admin"]["address"], admin)
    _set(_named(resources["listeners"], "ingress")["address"], listen)
    locality = _named(resources["clusters"], "picker")["load_assignment"]["endpoints"][0]
    _set(locality["lb_endpoints"][0]["endpoint"]["address"], picker)
    return config


def _path(name: str) -> Path:
    # In a wheel the files lie inside the package, in a checkout at the top of the repository.
    inside = _HERE / "_envoy" / f"{name}.yaml"
    return inside if inside.is_file() else _HERE.parent / "envoy" / f"{name}.yaml"


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _set(address: dict[str, Any], to: str) -> None:
    host, _, port = to.rpartition(":")
    address["socket_address"] = {"address": host, "port_value": int(port)}
