"""Endpoints, `ip:port` with IPv6 in brackets, in one spelling."""

from __future__ import annotations

import ipaddress


def canonical(text: str) -> str | None:
    """The one spelling of an endpoint, or of a bare address; None for what is neither.

    "[FD00:0:0::5]:8000" -> "[fd00::5]:8000"; "fd00:0:0::5" -> "[fd00::5]"; "10.0.0.5:8000" -> "10.0.0.5:8000".
    """
    text = text.strip()
    if (host := _host(text)) is not None:
        return host
    host_text, _, port = text.rpartition(":")
    host = _host(host_text)
    if host is None or not (port.isascii() and port.isdecimal() and len(port) <= 5) or not 0 < int(port) < 65536:
        return None
    return f"{host}:{int(port)}"


def host_of(endpoint: str) -> str:
    """The address of a canonical endpoint, IPv6 in brackets."""
    return endpoint.rpartition(":")[0]


def _host(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # What follows the % of a scope may be any text, also one that ends a header.
    if "%" in text:
        return None
    return f"[{address}]" if address.version == 6 else str(address)
