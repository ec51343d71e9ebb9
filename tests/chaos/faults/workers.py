"""Workers that fail, stall, or lie."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from picker.simulation.stack import MODEL
from tests.chaos.faults.registry import Rig, fault


@asynccontextmanager
async def _worker(rig: Rig, kind: str, **more: object) -> AsyncIterator[None]:
    url = f"http://{rig.stack.endpoints[0]}/fault"
    async with httpx.AsyncClient(timeout=10) as client:
        (await client.post(url, json={"kind": kind, **more})).raise_for_status()
        try:
            yield
        finally:
            (await client.post(url, json={"kind": "none"})).raise_for_status()


@fault("worker", "worker answers 503", "each is tried elsewhere; it is left out until it is well")
async def unavailable(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "unavailable"):
        yield


@fault("worker", "worker refuses for load", "each is tried elsewhere")
async def overloaded(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "overload"):
        yield


@fault("worker", "worker ten times slower", "it gets less")
async def slow(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "slow", factor=10):
        yield


@fault("worker", "worker stalls", "what it has waits; it gets nothing new")
async def stalls(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "stall"):
        yield


@fault(
    "worker",
    "worker answers 200, then breaks off",
    "what has begun breaks off; who hears of five leaves it out",
)
async def breaks_off(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "break"):
        yield


@fault("worker", "worker lies: it is idle", "the pickers' own books count beside its word")
async def claims_idle(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "idle"):
        yield


@fault("worker", "worker lies: it still has what it dropped", "placement suffers until it starts anew")
async def hoards(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "hoard"):
        yield
    rig.stack.workers[0].kill()
    await rig.stack.restart_worker(0)


@fault("worker", "worker lies: it is another", "what a connection brings is the worker's of that connection")
async def impersonates(rig: Rig) -> AsyncIterator[None]:
    async with _worker(rig, "impostor", topic=f"kv@{rig.stack.endpoints[1]}@{MODEL}"):
        yield


@fault("events", "worker's KV events lost", "what is missing is asked for again")
async def events_lost(rig: Rig) -> AsyncIterator[None]:
    rig.stack.kv_events.lost = 0.3
    yield
    rig.stack.kv_events.lost = 0.0


@fault("events", "worker's KV events out of order", "what is missing is asked for again")
async def events_disordered(rig: Rig) -> AsyncIterator[None]:
    rig.stack.kv_events.late = 0.3
    yield
    rig.stack.kv_events.late = 0.0
