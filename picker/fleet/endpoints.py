"""Endpoints, `ip:port` with IPv6 in brackets, in one spelling."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


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


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Of "10.0.0.0/8", "fd00::/8" or single addresses. Raises ValueError with what is wanted."""
    try:
        return tuple(map(ipaddress.ip_network, texts))
    except ValueError as error:
        raise ValueError(f"{error}; write a network such as 10.0.0.0/8 or fd00::/8") from None


def is_reachable(endpoint: str, within: Sequence[Network]) -> bool:
    """Whether Envoy may be told this canonical endpoint: it lies in one of these networks.

    Without any, it is an address that a worker can have: those of cloud metadata services are link-local, and 0.0.0.0
    is the machine on which Envoy runs.
    """
    address = ipaddress.ip_address(host_of(endpoint).strip("[]"))
    if within:
        return any(address in network for network in within)
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)


def _host(text: str) -> str | None:
    try:
        address = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # What follows the % of a scope may be any text, also one that ends a header.
    if "%" in text:
        return None
    return f"[{address}]" if address.version == 6 else str(address)
