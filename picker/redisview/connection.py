"""A client for one Redis: every wait has a deadline, and nothing is retried behind the caller's back.

The publisher and the feed have retry rules of their own, which depend on what they know after a failure; a client that
quietly sends a command twice would break them. Needs Redis 6.2 or later (GETDEL, exclusive ranges), or any Valkey.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

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
    """Bounds of the client, in seconds. `connections`: at most so many; further commands wait for `timeout_s`."""

    connect_timeout_s: float = 1.0
    timeout_s: float = 1.0
    health_check_s: float = 15.0
    connections: int = 8


def connect(url: str, settings: ConnectionSettings = ConnectionSettings()) -> Redis:
    """A client for `redis://`, `rediss://` or `unix://`; it connects with its first command. Raises BadRedisUrl.

    Replies are bytes. Close it with `aclose()`.
    """
    if urlsplit(url).scheme not in _SCHEMES:
        raise BadRedisUrl(f"{redacted(url)} is not a Redis URL: it must begin with redis://, rediss:// or unix://")
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=settings.connections,
            timeout=settings.timeout_s,
            socket_connect_timeout=settings.connect_timeout_s,
            socket_timeout=settings.timeout_s,
            health_check_interval=settings.health_check_s,
            retry=Retry(NoBackoff(), 0),
            decode_responses=False,
            # The replies of RESP 3 have other shapes; RESP 2 is the same with every server and client version.
            protocol=2,
            **({} if url.startswith("unix:") else {"socket_keepalive": True}),
        )
    except ValueError as error:
        raise BadRedisUrl(f"{redacted(url)} is not a Redis URL: {error}") from None
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
    """The URL without user, password and query, fit for a log line."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "(unreadable URL)"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


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
