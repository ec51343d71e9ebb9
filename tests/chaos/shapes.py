"""Redis in each shape that people run, and what can befall it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redis.exceptions import RedisError

from tests.integration import redis_servers
from tests.integration.redis_servers import BINARIES, Cluster, Sentinels, Server, plain, running


class Redis(Protocol):
    """Where it is, and which server has the data now."""

    @property
    def url(self) -> str: ...

    async def primary(self) -> Server: ...


@dataclass
class Single:
    """One server."""

    server: Server

    @property
    def url(self) -> str:
        return self.server.url

    async def primary(self) -> Server:
        return self.server


@dataclass
class Clustered:
    """A cluster, of which the node that has our pool's slot matters."""

    cluster: Cluster
    pool: str = "default"

    @property
    def url(self) -> str:
        return self.cluster.url

    async def slot(self) -> int:
        return int(await self.cluster.nodes[0].ask("CLUSTER", "KEYSLOT", f"{{{self.pool}}}"))

    async def primary(self) -> Server:
        return await self.cluster.owner(await self.slot())


@contextlib.asynccontextmanager
async def _single(binary: Path, folder: Path) -> AsyncIterator[Redis]:
    server = plain(binary, folder / "single", *OPTIONS)
    async with running(server):
        yield Single(server)


@contextlib.asynccontextmanager
async def _sentinels(binary: Path, folder: Path) -> AsyncIterator[Redis]:
    async with redis_servers.sentinels(binary, folder, OPTIONS) as group:
        yield group


@contextlib.asynccontextmanager
async def _cluster(binary: Path, folder: Path) -> AsyncIterator[Redis]:
    async with redis_servers.cluster(binary, folder, OPTIONS) as group:
        yield Clustered(group)


OPTIONS = ("enable-debug-command local", "enable-protected-configs local")
"""For faults that Redis has no plain command for."""

_Run = Callable[[Path, Path], contextlib.AbstractAsyncContextManager[Redis]]
SHAPES: dict[str, tuple[_Run, Path]] = {
    "single Valkey": (_single, BINARIES[0]),
    **({"single Redis": (_single, BINARIES[-1])} if len(BINARIES) > 1 else {}),
    "sentinels": (_sentinels, BINARIES[0]),
    "cluster": (_cluster, BINARIES[0]),
}


async def revive(server: Server, redis: Redis) -> None:
    """Starts a killed server again; behind sentinels it comes back as a replica."""
    await server.start()
    if isinstance(redis, Sentinels):
        with contextlib.suppress(RedisError, OSError):
            await redis_servers.until(redis.is_complete)
