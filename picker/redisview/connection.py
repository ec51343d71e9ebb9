"""A client for Redis, with `bounded` as the deadline of each command; nothing is retried behind the caller's back.

The publisher and the feed have retry rules of their own, which depend on what they know after a failure; a client that
quietly sends a command twice would break them. Needs Redis 6.2 or later (GETDEL, exclusive ranges), or any Valkey.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.credentials import CredentialProvider
from redis.exceptions import ClusterDownError, MovedError, ReadOnlyError, RedisError

from picker.redisview.keys import Keys
from picker.redisview.locate import Address, Fixed, Locator, cluster, sentinels
from picker.redisview.settings import RedisConfig
from picker.redisview.url import BadRedisUrl, Kind, Target, parse_url, redacted

FAILURES = (RedisError, OSError)
"""What a command may raise for Redis' sake; the built-in TimeoutError is an OSError."""

DEADLINE_S = 0.5
"""Of a command that can as well be given again later."""
_CONNECT_TIMEOUT_S = 1.0
_HEALTH_CHECK_S = 15.0
_MOST_CONNECTIONS = 8
_LONGEST_WAIT_S = 1.0
"""For one of them."""
_REASON_CHARACTERS = 200


def connect(where: str | RedisConfig, keys: Keys) -> Redis:
    """A client for the Redis that holds the keys of this pool; it connects with its first command. Raises BadRedisUrl.

    Replies are bytes. Commands have no deadline of their own: run each inside `bounded`. Close it with `aclose()`.
    """
    config = RedisConfig(url=where) if isinstance(where, str) else where
    target = parse_url(config.url)
    options = _options(config, target)
    if "path" not in options:
        options["locator"] = _locator(config, target, keys, options)
        options["connection_class"] = _LocatedTls if target.is_tls else _Located
    pool = BlockingConnectionPool(max_connections=_MOST_CONNECTIONS, timeout=_LONGEST_WAIT_S, **options)
    return Redis.from_pool(pool)


def _options(config: RedisConfig, target: Target) -> dict[str, Any]:
    """Of each connection to a server that holds data."""
    options = target.options | {
        "socket_connect_timeout": _CONNECT_TIMEOUT_S,
        # With a socket timeout redis-py 8 sends inside asyncio.wait_for, which in Python 3.11 swallows a
        # cancellation that comes as the send completes (test_redis_view::test_no_cancellation_is_lost).
        "socket_timeout": None,
        "health_check_interval": _HEALTH_CHECK_S,
        "retry": Retry(NoBackoff(), 0),
        "decode_responses": False,
        # The replies of RESP 3 have other shapes; RESP 2 is the same with every server and client version.
        "protocol": 2,
    }
    if "path" not in options:
        options["socket_keepalive"] = True
    return options | _credentials(config.username, config.password_file) | _tls(config, target)


def _credentials(username: str | None, password_file: str | None) -> dict[str, Any]:
    if password_file is None:
        return {}
    # Both at once are refused by the library; the file is the more explicit one.
    return {"credential_provider": PasswordFile(username, Path(password_file)), "username": None, "password": None}


def _tls(config: RedisConfig, target: Target) -> dict[str, Any]:
    if not target.is_tls:
        if config.ca or config.cert:
            raise BadRedisUrl(f"{redacted(config.url)} is without TLS, but ca or cert is set: begin it with rediss")
        return {}
    files = {"ssl_ca_certs": config.ca, "ssl_certfile": config.cert, "ssl_keyfile": config.key}
    return {name: path for name, path in files.items() if path} | {"ssl_check_hostname": config.verify_host}


def _locator(config: RedisConfig, target: Target, keys: Keys, options: dict[str, Any]) -> Locator:
    if target.kind is Kind.STANDALONE:
        return Fixed(target.seeds[0])
    if target.kind is Kind.CLUSTER:
        return cluster(target.seeds, _asker(options, target), key_slot(keys.load.encode()))
    of_data = {"username", "password", "credential_provider", "db"}
    bare = {name: value for name, value in options.items() if name not in of_data}
    sentinel = bare | _credentials(config.sentinel_username, config.sentinel_password_file)
    return sentinels(target.seeds, _asker(sentinel, target), target.service)


def _asker(options: dict[str, Any], target: Target) -> Callable[[Address], Redis]:
    kind = SSLConnection if target.is_tls else Connection
    fixed = {name: value for name, value in options.items() if name not in ("host", "port", "health_check_interval")}

    def client(address: Address) -> Redis:
        pool = ConnectionPool(connection_class=kind, host=address.host, port=address.port, **fixed)
        return Redis.from_pool(pool)

    return client


_NOT_HERE = (ReadOnlyError, MovedError, ClusterDownError)
"""Answers of a server that is not, or not any more, the one to ask; MasterDownError is a ClusterDownError."""


class _Located(Connection):
    """Goes where its locator says, and anew after an answer that says that this is the wrong server."""

    def __init__(self, *, locator: Locator, **options: Any):
        super().__init__(**options)
        self._locator = locator
        self._leaves = False

    async def connect(self) -> None:
        """Comes before each command."""
        if self.is_connected:
            here = Address(self.host, self.port)
            if self._leaves or await self._locator.is_elsewhere(here):
                await self.disconnect()
        await super().connect()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        self.host, self.port = await self._locator.find()
        self._leaves = False
        await super()._connect()  # type: ignore[no-untyped-call]

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        """The next reply."""
        try:
            return await super().read_response(*arguments, **options)
        except _NOT_HERE:
            self._leaves = self._locator.suspect()
            raise


class _LocatedTls(_Located, SSLConnection):
    pass


class PasswordFile(CredentialProvider):
    """A password in a file, read for each new connection: whoever changes it need not restart us."""

    def __init__(self, username: str | None, path: Path):
        self._username = username
        self._path = path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """User, if there is one, and password. Raises OSError."""
        try:
            password = self._path.read_text().strip()
        except UnicodeDecodeError:
            raise OSError(f"{self._path} is no text file with a password") from None
        return (self._username, password) if self._username else (password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """The same."""
        return self.get_credentials()


@asynccontextmanager
async def bounded(deadline_s: float) -> AsyncIterator[None]:
    """Around one command or pipeline: whatever becomes of the connection, it ends within so many seconds.

    redis-py 8 loses a cancellation that comes just as a connection fails or a pipeline is put away (seen as tasks that
    do not end: test_agent_model). Here it is raised again.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except RuntimeError as error:
        # uvloop raises it for a write to a connection that has just been lost; redis-py 8 lets it pass.
        raise ConnectionError(str(error)) from error
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


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
