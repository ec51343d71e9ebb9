"""What can befall a connection, for each of the ways: to Redis, to one of the workers, to one of the pickers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tests.chaos.faults.registry import Rig, fault
from tests.chaos.harness import Machine
from tests.integration.relay import Relay

_NARROW_BYTES_PER_S = 30_000
_FOUND_OUT_S = 30.0

_On = Callable[[Relay], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def _slow(way: Relay) -> AsyncIterator[None]:
    way.delay_s = 0.3
    yield
    way.delay_s = 0.0


@asynccontextmanager
async def _narrow(way: Relay) -> AsyncIterator[None]:
    way.bytes_per_s = _NARROW_BYTES_PER_S
    yield
    way.bytes_per_s = math.inf


@asynccontextmanager
async def _stuck(way: Relay) -> AsyncIterator[None]:
    way.flows.clear()
    yield
    way.flows.set()


@asynccontextmanager
async def _half_open(way: Relay) -> AsyncIterator[None]:
    way.drop_silently()
    yield


@asynccontextmanager
async def _resets(way: Relay) -> AsyncIterator[None]:
    async def again() -> None:
        while True:
            way.reset()
            await asyncio.sleep(0.2)

    async with asyncio.TaskGroup() as tasks:
        resetting = tasks.create_task(again())
        yield
        resetting.cancel()


_WAYS: dict[str, Callable[[Rig], Relay | None]] = {
    "Redis": lambda rig: rig.to_redis,
    "a worker": lambda rig: rig.stack.to_worker,
    "a picker": lambda rig: rig.stack.to_picker,
}
_KNOWN = "picks go by what is known"
_FAULTS: dict[tuple[str, str], tuple[_On, str]] = {
    ("Redis", "slow"): (_slow, _KNOWN),
    ("Redis", "narrow"): (_narrow, _KNOWN),
    ("Redis", "stuck"): (_stuck, _KNOWN),
    ("Redis", "half-open"): (_half_open, _KNOWN),
    ("Redis", "reset"): (_resets, _KNOWN),
    ("a worker", "slow"): (_slow, "it takes longer"),
    ("a worker", "narrow"): (_narrow, "it takes longer"),
    ("a worker", "stuck"): (_stuck, "what it has waits; it gets nothing new"),
    ("a worker", "reset"): (_resets, "what has no byte of its answer yet is tried elsewhere"),
    ("a picker", "slow"): (_slow, "it takes longer"),
    ("a picker", "narrow"): (_narrow, "it takes longer"),
    ("a picker", "stuck"): (_stuck, "what asks it waits for 5 s, then Envoy chooses"),
    ("a picker", "half-open"): (_half_open, "Envoy finds it dead within 10 s; until then as if stuck"),
    ("a picker", "reset"): (_resets, "Envoy asks the other"),
}


def _register(way: str, kind: str, make: _On, says: str) -> None:
    def can(rig: Rig) -> bool:
        return _WAYS[way](rig) is not None

    part = "Redis" if way == "Redis" else "network"

    @fault(part, f"network to {way} {kind}", says, can, once=way != "Redis")
    async def on(rig: Rig) -> AsyncIterator[None]:
        relay = _WAYS[way](rig)
        assert relay
        async with make(relay):
            yield


for (_way, _kind), (_make, _says) in _FAULTS.items():
    _register(_way, _kind, _make, _says)


@fault(
    "worker",
    "worker's machine gone without a word",
    "what it had is tried elsewhere after 25 s; it gets nothing new",
    can=lambda _: Machine.can(),
)
async def machine_gone(rig: Rig) -> AsyncIterator[None]:
    """For longer than Envoy takes to find it out: connections that are only late would go on."""
    with rig.stack.machine.gone():
        await asyncio.sleep(_FOUND_OUT_S)
        yield
