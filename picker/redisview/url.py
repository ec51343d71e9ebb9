"""Redis URLs: what they name, and how they look in a log."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import connection

from picker.redisview.locate import Address

_SCHEME = re.compile(r"(?P<tls>redis|rediss)(?:\+(?P<kind>sentinel|cluster))?")
_PORTS = {"standalone": 6379, "sentinel": 26379, "cluster": 6379}


class BadRedisUrl(ValueError):
    """A URL that names no Redis. The message has no password in it."""


class Kind(enum.StrEnum):
    """How a primary is found."""

    STANDALONE = "standalone"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL names. `options`: of a connection; `service`: of sentinels, the primary's name."""

    kind: Kind
    is_tls: bool
    seeds: Sequence[Address]
    service: str
    options: dict[str, Any]


def parse_url(url: str) -> Target:
    """Raises BadRedisUrl."""
    scheme, _, rest = url.partition("://")
    if scheme == "unix":
        return Target(Kind.STANDALONE, False, (), "", _parsed(url, url))
    found = _SCHEME.fullmatch(scheme)
    if not found or not rest:
        schemes = "redis://, rediss:// or unix://, redis+sentinel:// or redis+cluster://"
        raise BadRedisUrl(f"{redacted(url)} is not a Redis URL: it must begin with {schemes}")
    kind = Kind(found["kind"] or Kind.STANDALONE)
    seeds, service, plain = _plain(url, rest, kind)
    options = _parsed(url, f"redis://{plain}")
    host, port = options.pop("host", "localhost"), options.pop("port", _PORTS[kind])
    seeds = seeds or (Address(host, port),)
    return Target(kind, found["tls"] == "rediss", seeds, service, options)


def _plain(url: str, rest: str, kind: Kind) -> tuple[Sequence[Address], str, str]:
    """The seeds, the primary's name, and the rest as of a URL with one host."""
    if kind is Kind.STANDALONE:
        return (), "", rest
    location, question, query = rest.partition("?")
    authority, _, path = location.partition("/")
    user, at, hosts = authority.rpartition("@")
    seeds = [_address(url, host, _PORTS[kind]) for host in hosts.split(",")]
    service, _, db = path.partition("/") if kind is Kind.SENTINEL else ("", "", path)
    if kind is Kind.SENTINEL and not service:
        example = "redis+sentinel://host:26379/mymaster"
        raise BadRedisUrl(f"{redacted(url)} does not name the primary that sentinels know: write {example}")
    if kind is Kind.CLUSTER and db not in ("", "0"):
        raise BadRedisUrl(f"{redacted(url)} names database {db}, but a cluster has only database 0")
    return seeds, service, f"{user}{at}unused/{db}{question}{query}"


def _address(url: str, text: str, port: int) -> Address:
    parsed = _parsed(url, f"redis://{text}")
    if "host" not in parsed:
        raise BadRedisUrl(f"{redacted(url)} is not a Redis URL: a host is missing")
    return Address(parsed["host"], parsed.get("port", port))


def _parsed(url: str, plain: str) -> dict[str, Any]:
    try:
        options = dict(connection.parse_url(plain))
    except ValueError:
        # The library's own message can quote a piece of the password.
        raise BadRedisUrl(
            f"{redacted(url)} is not a Redis URL: host, port, database or an option is not valid; "
            "special characters in a password must be percent-encoded"
        ) from None
    if plain.startswith("redis:"):
        options.pop("connection_class", None)
    return options


def redacted(url: str) -> str:
    """The URL without user, password and query, fit for a log line.

    Nothing but the scheme remains where one cannot tell what is a password: one that is not percent-encoded may hold
    the very characters that divide a URL.
    """
    scheme, separator, rest = url.partition("://")
    address, _, query = rest.partition("?")
    if not separator:
        return "(no URL)"
    if "@" in query:
        return f"{scheme}://(hidden)"
    return f"{scheme}://{address.rpartition('@')[2]}"
