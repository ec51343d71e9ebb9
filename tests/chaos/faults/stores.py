"""What befalls Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from redis.exceptions import RedisError

from tests.chaos.faults.processes import frozen, slow_start
from tests.chaos.faults.registry import Rig, fault
from tests.chaos.shapes import Clustered, revive
from tests.integration.redis_servers import Sentinels

_KNOWN = "picks go by what is known"


@contextlib.asynccontextmanager
async def _setting(rig: Rig, **values: tuple[str, str]) -> AsyncIterator[None]:
    """Each with the bad value and the good one; `_` stands for `-`."""
    primary = await rig.redis.primary()
    for name, (bad, _) in values.items():
        await primary.ask("CONFIG", "SET", name.replace("_", "-"), bad)
    try:
        yield
    finally:
        for name, (_, good) in values.items():
            await primary.ask("CONFIG", "SET", name.replace("_", "-"), good)


@fault("Redis", "Redis killed", _KNOWN)
async def killed(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    primary.process.kill()
    yield
    await revive(primary, rig.redis)


@fault("Redis", "Redis frozen", _KNOWN)
async def redis_frozen(rig: Rig) -> AsyncIterator[None]:
    async with frozen((await rig.redis.primary()).process):
        yield


@fault("Redis", "Redis slow to start", _KNOWN)
async def slow_to_start(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    async with slow_start(primary.process):
        yield
    await revive(primary, rig.redis)


@fault("Redis", "Redis loads", _KNOWN)
async def loads(rig: Rig) -> AsyncIterator[None]:
    """As after a restart, with a data set that takes seconds."""
    primary = await rig.redis.primary()
    await primary.ask("CONFIG", "SET", "key-load-delay", 100_000)
    await primary.ask("CONFIG", "SET", "loading-process-events-interval-bytes", 1024)
    for number in range(40):
        await primary.ask(
            "EVAL", "redis.call('SET', KEYS[1], string.rep('x', 2000), 'EX', 60)", 1, f"{{default}}{number}"
        )
    loading = asyncio.ensure_future(primary.ask("DEBUG", "RELOAD"))
    yield
    try:
        await loading
        await primary.ask("CONFIG", "SET", "key-load-delay", 0)
    except RedisError:
        # A reload that does not come to its end ends the server.
        primary.process.kill()
        await revive(primary, rig.redis)


@fault("Redis", "Redis emptied", "agents publish again")
async def emptied(rig: Rig) -> AsyncIterator[None]:
    await (await rig.redis.primary()).ask("FLUSHALL")
    yield


@fault("Redis", "Redis full", _KNOWN)
async def full(rig: Rig) -> AsyncIterator[None]:
    async with _setting(rig, maxmemory=("1", "0")):
        yield


@fault("Redis", "Redis evicts", "agents publish again")
async def evicts(rig: Rig) -> AsyncIterator[None]:
    async with _setting(rig, maxmemory_policy=("allkeys-random", "noeviction"), maxmemory=("1", "0")):
        yield


@fault("Redis", "Redis takes no writes", _KNOWN)
async def read_only(rig: Rig) -> AsyncIterator[None]:
    async with _setting(rig, min_replicas_to_write=("5", "0")):
        yield


@fault("Redis", "Redis' disk full", _KNOWN)
async def cannot_save(rig: Rig) -> AsyncIterator[None]:
    """A save into a folder that takes no files fails, and after that it takes no writes."""
    primary = await rig.redis.primary()
    async with _setting(rig, dir=("/proc", str(primary.folder)), save=("3600 1", "")):
        with contextlib.suppress(RedisError):
            await primary.ask("BGSAVE")
        yield
        await primary.ask("CONFIG", "SET", "dir", str(primary.folder))
        await primary.ask("SAVE")


@fault("Redis", "Redis cuts connections", "they are made again")
async def cuts(rig: Rig) -> AsyncIterator[None]:
    await (await rig.redis.primary()).ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield


@fault("Redis", "Redis' password changed", _KNOWN)
async def password(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    await primary.ask("CONFIG", "SET", "requirepass", "another")
    await primary.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", password="another")
    yield
    await primary.ask("CONFIG", "SET", "requirepass", "", password="another")


@fault("Redis", "Redis failed over", "the new primary is found", can=lambda rig: isinstance(rig.redis, Sentinels))
async def failed_over(rig: Rig) -> AsyncIterator[None]:
    assert isinstance(rig.redis, Sentinels)
    await rig.redis.sentinels[0].ask("SENTINEL", "FAILOVER", "main")
    yield


@fault("Redis", "Redis resharded", "the slot is found again", can=lambda rig: isinstance(rig.redis, Clustered))
async def resharded(rig: Rig) -> AsyncIterator[None]:
    assert isinstance(rig.redis, Clustered)
    cluster, owner = rig.redis.cluster, await rig.redis.primary()
    await cluster.move(await rig.redis.slot(), next(node for node in cluster.nodes if node is not owner))
    yield
