"""A client for one Redis, with `bounded` as the deadline of each command; nothing is retried behind the caller's back.

The publisher and the feed have retry rules of their own, which depend on what they know after a failure; a client that
quietly sends a command twice would break them. Needs Redis 6.2 or later (GETDEL, exclusive ranges), or any Valkey.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

FAILURES = (RedisError, OSError)
"""What a command may raise for Redis' sake; the built-in TimeoutError is an OSError."""

_SCHEMES = ("redis", "rediss", "unix")
_REASON_CHARACTERS = 200


class BadRedisUrl(ValueError):
    """A URL that names no Redis. The message has no password in it."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Bounds of the client, in seconds. `connections`: at most so many; further commands wait for `wait_s`."""

    connect_timeout_s: float = 1.0
    wait_s: float = 1.0
    health_check_s: float = 15.0
    connections: int = 8


def connect(url: str, settings: ConnectionSettings = ConnectionSettings()) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`; it connects with its first command. Raises BadRedisUrl.

    Replies are bytes. Commands have no deadline of their own: run each inside `bounded`. Close it with `aclose()`.
    """
    if url.partition("://")[0] not in _SCHEMES:
        raise BadRedisUrl(f"{redacted(url)} is not a Redis URL: it must begin with redis://, rediss:// or unix://")
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=settings.connections,
            timeout=settings.wait_s,
            socket_connect_timeout=settings.connect_timeout_s,
            # With a socket timeout redis-py 8 sends inside asyncio.wait_for, which in Python 3.11 swallows a
            # cancellation that comes as the send completes (test_redis_view::test_no_cancellation_is_lost).
            socket_timeout=None,
            health_check_interval=settings.health_check_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            # The replies of RESP 3 have other shapes; RESP 2 is the same with every server and client version.
            protocol=2,
            **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        )
    except ValueError:
        # The library's own message can quote a piece of the password.
        raise BadRedisUrl(
            f"{redacted(url)} is not a Redis URL: host, port, database or an option is not valid; "
            "special characters in a password must be percent-encoded"
        ) from None
    return Redis.from_pool(pool)


@asynccontextmanager
async def bounded(deadline_s: float) -> AsyncIterator[None]:
    """Around one command or pipeline: whatever becomes of the connection, it ends within so many seconds."""
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except RuntimeError as error:
        # uvloop raises it for a write to a connection that has just been lost; redis-py 8 lets it pass.
        raise ConnectionError(str(error)) from error


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


def reason(error: BaseException) -> str:
    """Why a command failed, in one short line: the kind of error and Redis' own words."""
    return f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]


class Backoff:
    """Waits that double from `first_s` to `longest_s`, jittered so that a fleet does not come back in step."""

    def __init__(self, rng: random.Random, first_s: float = 0.05, longest_s: float = 2.0):
        self._rng = rng
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures = 0

    def next(self) -> float:
        """Seconds to wait after one more failure: between half and the whole of the current step."""
        step: float = min(self._first_s * 2.0 ** min(self._failures, 32), self._longest_s)
        self._failures += 1
        return step * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """The last attempt was a success."""
        self._failures = 0
