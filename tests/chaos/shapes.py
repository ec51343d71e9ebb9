"""Redis in each shape that people run, and what can befall it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from redis.exceptions import RedisError

from tests.integration import redis_servers
from tests.integration.redis_servers import BINARIES, Cluster, Sentinels, Server, plain, running


class Redis(Protocol):
    """Where it is, and which server has the data now."""

    url: str

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

    async def primary(self) -> Server:
        slot = int(await self.cluster.nodes[0].ask("CLUSTER", "KEYSLOT", f"{{{self.pool}}}"))
        return await self.cluster.owner(slot)


@contextlib.asynccontextmanager
async def single(folder: Path) -> AsyncIterator[Redis]:
    server = plain(BINARIES[0], folder / "single")
    async with running(server):
        yield Single(server)


@contextlib.asynccontextmanager
async def debian(folder: Path) -> AsyncIterator[Redis]:
    server = plain(BINARIES[-1], folder / "debian")
    async with running(server):
        yield Single(server)


@contextlib.asynccontextmanager
async def sentinels(folder: Path) -> AsyncIterator[Redis]:
    async with redis_servers.sentinels(BINARIES[0], folder) as group:
        yield group


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Redis]:
    async with redis_servers.cluster(BINARIES[0], folder) as group:
        yield Clustered(group)


SHAPES: dict[str, Callable[[Path], contextlib.AbstractAsyncContextManager[Redis]]] = {
    "single Valkey": single,
    **({"single Redis": debian} if len(BINARIES) > 1 else {}),
    "sentinels": sentinels,
    "cluster": cluster,
}


async def freeze(server: Server) -> None:
    """It keeps its connections and answers nothing."""
    server.process.signal(signal.SIGSTOP)


async def thaw(server: Server) -> None:
    """It goes on."""
    server.process.signal(signal.SIGCONT)


async def revive(server: Server, redis: Redis) -> None:
    """Starts a killed server again; behind sentinels it comes back as a replica."""
    await server.start()
    if isinstance(redis, Sentinels):
        with contextlib.suppress(RedisError, OSError):
            await redis_servers.until(redis.is_complete)
