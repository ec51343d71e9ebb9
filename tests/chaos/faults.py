"""What goes wrong, by name: how it begins, and how it ends."""

from __future__ import annotations

import resource
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx

from picker.simulation.process import Process
from picker.simulation.stack import Stack
from tests.chaos.shapes import Redis, freeze, revive, thaw
from tests.integration.relay import Relay


@dataclass
class Rig:
    """A running stack, its Redis, and the way to it."""

    stack: Stack
    redis: Redis
    network: Relay | None = None
    """Between everybody and Redis, where there is one server: sentinels and clusters name theirs by address."""


Fault = Callable[[Rig], AbstractAsyncContextManager[None]]
"""The fault is on within the block, and mended at its end."""

FAULTS: dict[str, Fault] = {}
OF_THE_NETWORK = ("Redis' network slow", "Redis' network silent")
"""Those that need `Rig.network`."""


def _fault(name: str) -> Callable[[Callable[[Rig], AsyncIterator[None]]], Fault]:
    def register(make: Callable[[Rig], AsyncIterator[None]]) -> Fault:
        FAULTS[name] = asynccontextmanager(make)
        return FAULTS[name]

    return register


@asynccontextmanager
async def _frozen(process: Process) -> AsyncIterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@_fault("worker killed")
async def worker_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.workers[0].kill()
    yield
    await rig.stack.restart_worker(0)


@_fault("worker frozen")
async def worker_frozen(rig: Rig) -> AsyncIterator[None]:
    async with _frozen(rig.stack.workers[0]):
        yield


@_fault("worker answers 503")
async def worker_unavailable(rig: Rig) -> AsyncIterator[None]:
    async with _worker_fault(rig, {"kind": "unavailable"}):
        yield


@_fault("worker refuses for load")
async def worker_overloaded(rig: Rig) -> AsyncIterator[None]:
    async with _worker_fault(rig, {"kind": "overload"}):
        yield


@_fault("worker ten times slower")
async def worker_slow(rig: Rig) -> AsyncIterator[None]:
    async with _worker_fault(rig, {"kind": "slow", "factor": 10}):
        yield


@_fault("one of two pickers killed")
async def picker_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.pickers[0].kill()
    yield
    await rig.stack.start_picker(0)


@_fault("both pickers killed")
async def pickers_killed(rig: Rig) -> AsyncIterator[None]:
    for picker in rig.stack.pickers:
        picker.kill()
    yield
    for number in range(len(rig.stack.pickers)):
        await rig.stack.start_picker(number)


@_fault("picker told to stop")
async def picker_stopped(rig: Rig) -> AsyncIterator[None]:
    await rig.stack.pickers[0].stop(grace_s=30.0)
    yield
    await rig.stack.start_picker(0)


@_fault("agent killed")
async def agent_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.agent.kill()
    yield
    rig.stack.agent.start()


@_fault("agent frozen")
async def agent_frozen(rig: Rig) -> AsyncIterator[None]:
    async with _frozen(rig.stack.agent):
        yield


@_fault("Redis killed")
async def redis_killed(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    primary.process.kill()
    yield
    await revive(primary, rig.redis)


@_fault("Redis frozen")
async def redis_frozen(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    await freeze(primary)
    try:
        yield
    finally:
        await thaw(primary)


@_fault("Redis emptied")
async def redis_emptied(rig: Rig) -> AsyncIterator[None]:
    await (await rig.redis.primary()).ask("FLUSHALL")
    yield


@_fault("Redis full")
async def redis_full(rig: Rig) -> AsyncIterator[None]:
    async with _redis_setting(rig, "maxmemory", "1", "0"):
        yield


@_fault("Redis takes no writes")
async def redis_read_only(rig: Rig) -> AsyncIterator[None]:
    async with _redis_setting(rig, "min-replicas-to-write", "5", "0"):
        yield


@_fault("Redis cuts connections")
async def redis_cuts(rig: Rig) -> AsyncIterator[None]:
    await (await rig.redis.primary()).ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    yield


@_fault("Redis' password changed")
async def redis_password(rig: Rig) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    await primary.ask("CONFIG", "SET", "requirepass", "another")
    await primary.ask("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes", password="another")
    yield
    await primary.ask("CONFIG", "SET", "requirepass", "", password="another")


@_fault("Redis' network slow")
async def redis_slow(rig: Rig) -> AsyncIterator[None]:
    assert rig.network
    rig.network.delay_s = 0.3
    yield
    rig.network.delay_s = 0.0


@_fault("Redis' network silent")
async def redis_silent(rig: Rig) -> AsyncIterator[None]:
    assert rig.network
    rig.network.drop_silently()
    yield


@_fault("pickers' configuration wrong")
async def configuration_wrong(rig: Rig) -> AsyncIterator[None]:
    files = [rig.stack.folder / f"picker-{number}.yaml" for number in range(len(rig.stack.pickers))]
    right = [file.read_text() for file in files]
    for file in files:
        file.write_text("policy: [no, such\nlimits: {max_runing: 1}\n")
    yield
    for file, text in zip(files, right, strict=True):
        file.write_text(text)


@_fault("pickers out of descriptors")
async def descriptors_gone(rig: Rig) -> AsyncIterator[None]:
    before = [resource.prlimit(picker.pid, resource.RLIMIT_NOFILE) for picker in rig.stack.pickers]
    for picker in rig.stack.pickers:
        # Fewer than are open: not one more can be had.
        resource.prlimit(picker.pid, resource.RLIMIT_NOFILE, (8, before[0][1]))
    yield
    for picker, limit in zip(rig.stack.pickers, before, strict=True):
        resource.prlimit(picker.pid, resource.RLIMIT_NOFILE, limit)


@asynccontextmanager
async def _redis_setting(rig: Rig, name: str, bad: str, good: str) -> AsyncIterator[None]:
    primary = await rig.redis.primary()
    await primary.ask("CONFIG", "SET", name, bad)
    try:
        yield
    finally:
        await primary.ask("CONFIG", "SET", name, good)


@asynccontextmanager
async def _worker_fault(rig: Rig, fault: dict[str, object]) -> AsyncIterator[None]:
    url = f"http://{rig.stack.endpoints[0]}/fault"
    async with httpx.AsyncClient(timeout=10) as client:
        (await client.post(url, json=fault)).raise_for_status()
        try:
            yield
        finally:
            (await client.post(url, json={"kind": "none"})).raise_for_status()
