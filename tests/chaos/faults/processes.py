"""Processes that are killed, frozen, replaced, or slow to start."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from picker.simulation.process import Process
from tests.chaos.faults.registry import Rig, fault


@asynccontextmanager
async def frozen(process: Process) -> AsyncIterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


@asynccontextmanager
async def slow_start(process: Process) -> AsyncIterator[None]:
    """Killed, and started again; for all of the block it gets no further than half a second."""
    process.kill()
    process.start()
    await asyncio.sleep(0.5)
    async with frozen(process):
        yield


@fault("worker", "worker killed", "what has no byte of its answer yet is tried elsewhere")
async def worker_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.workers[0].kill()
    yield
    await rig.stack.restart_worker(0)


@fault("worker", "worker slow to start", "it gets nothing before it is ready")
async def worker_slow_to_start(rig: Rig) -> AsyncIterator[None]:
    async with slow_start(rig.stack.workers[0]):
        yield


@fault("worker", "worker frozen", "what it has waits; it gets nothing new")
async def worker_frozen(rig: Rig) -> AsyncIterator[None]:
    async with frozen(rig.stack.workers[0]):
        yield


@fault("picker", "one of two pickers killed", "Envoy asks the other")
async def picker_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.pickers[0].kill()
    yield
    await rig.stack.start_picker(0)


@fault("picker", "one of two pickers frozen", "what asks it waits for 5 s, then Envoy chooses")
async def picker_frozen(rig: Rig) -> AsyncIterator[None]:
    async with frozen(rig.stack.pickers[0]):
        yield


@fault("picker", "one of two pickers slow to start", "Envoy asks the other")
async def picker_slow_to_start(rig: Rig) -> AsyncIterator[None]:
    async with slow_start(rig.stack.pickers[0]):
        yield


@fault("picker", "both pickers killed", "Envoy chooses")
async def pickers_killed(rig: Rig) -> AsyncIterator[None]:
    for picker in rig.stack.pickers:
        picker.kill()
    yield
    for number in range(len(rig.stack.pickers)):
        await rig.stack.start_picker(number)


@fault("picker", "picker told to stop", "it ends what it has; Envoy asks the other")
async def picker_stopped(rig: Rig) -> AsyncIterator[None]:
    await rig.stack.pickers[0].stop(grace_s=30.0)
    yield
    await rig.stack.start_picker(0)


@fault("picker", "pickers replaced one after the other", "a rollout is not seen")
async def pickers_replaced(rig: Rig) -> AsyncIterator[None]:
    for number, picker in enumerate(rig.stack.pickers):
        await picker.stop(grace_s=30.0)
        await rig.stack.start_picker(number)
    yield


@fault("agent", "agent killed", "its workers are picked as the only ones there are")
async def agent_killed(rig: Rig) -> AsyncIterator[None]:
    rig.stack.agent.kill()
    yield
    rig.stack.agent.start()


@fault("agent", "agent frozen", "its workers are picked as the only ones there are")
async def agent_frozen(rig: Rig) -> AsyncIterator[None]:
    async with frozen(rig.stack.agent):
        yield


@fault("agent", "agent replaced", "its workers stay")
async def agent_replaced(rig: Rig) -> AsyncIterator[None]:
    await rig.stack.agent.stop(grace_s=30.0)
    rig.stack.agent.start()
    yield


@fault("agent", "agent slow to start", "its workers are picked as the only ones there are")
async def agent_slow_to_start(rig: Rig) -> AsyncIterator[None]:
    async with slow_start(rig.stack.agent):
        yield


@fault("Envoy", "Envoy frozen", "clients wait")
async def envoy_frozen(rig: Rig) -> AsyncIterator[None]:
    async with frozen(rig.stack.envoy):
        yield
