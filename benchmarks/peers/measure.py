"""The rounds: each front in turn gets the same requests, first as fast as it answers and then at a fixed rate."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from benchmarks.common.closed import Task, Told
from benchmarks.common.conversations import Conversations
from benchmarks.common.load import Client, chat, poisson
from benchmarks.extproc.contenders import KB, MODEL
from benchmarks.peers.rig import Front

CLOSED, OPEN = "closed loop", "open loop"
_WARM_UP_S = 0.5
_FLUSH_S = 0.2
"""After the last answer: Envoy sends its access log every 0.1 s, and reading that is part of the cost."""
_CLIENT = (sys.executable, "-m", "benchmarks.common.closed")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `rates`: of the open loop, requests a second for each body size in bytes."""

    rates: dict[int, float]
    rounds: int
    seconds: float
    connections: int = 16


STANDARD = Plan({2 * KB: 500, 32 * KB: 300, 256 * KB: 100}, rounds=3, seconds=4)
QUICK = Plan({2 * KB: 200, 32 * KB: 100, 256 * KB: 25}, rounds=1, seconds=1)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One front under one load, one size, one round. `cpu_ms`: of each process for each request.

    `failures`: requests without a 200, and those that the picker left to Envoy.
    """

    front: str
    load: str
    body_bytes: int
    round: int
    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]


def turns(plan: Plan, fronts: Sequence[Front]) -> Iterator[tuple[int, int, Front, str]]:
    """Size, round, front and load of each measurement, in order."""
    for size in plan.rates:
        for round in range(plan.rounds):
            # Each starts a round in turn, so that none is always the one after a pause.
            first = round % len(fronts)
            for front in (*fronts[first:], *fronts[:first]):
                yield size, round, front, CLOSED
                yield size, round, front, OPEN


async def measure(plan: Plan, fronts: Sequence[Front], advance: Callable[[str], None]) -> list[Measurement]:
    """All of it. `advance` is told what is measured next."""
    found = []
    for size, round, front, load in turns(plan, fronts):
        advance(f"{front.label}, {size // KB} KB, {load}")
        found.append(await _measure(plan, size, round, front, load))
    return found


async def _measure(plan: Plan, size: int, round: int, front: Front, load: str) -> Measurement:
    send = _closed if load == CLOSED else _open
    await send(front, plan, size, 1_000_000 * round, _WARM_UP_S)
    placed, before = await front.placed(), front.cpu_s()
    told = await send(front, plan, size, 1_000_000 * round + 500_000, plan.seconds)
    await asyncio.sleep(_FLUSH_S)
    spent = {name: seconds - before[name] for name, seconds in front.cpu_s().items()} | {"client": told.cpu_s}
    failures, now_placed = told.failures, await front.placed()
    if placed is not None and now_placed is not None:
        failures = max(failures, told.requests - (now_placed - placed))
    cuts = statistics.quantiles(told.latencies_s, n=100, method="inclusive")
    return Measurement(
        front=front.label,
        load=load,
        body_bytes=size,
        round=round,
        requests=told.requests,
        failures=failures,
        per_s=told.requests / told.seconds,
        p50_ms=1000 * cuts[49],
        p99_ms=1000 * cuts[98],
        cpu_ms={name: 1000 * seconds / told.requests for name, seconds in spent.items()},
    )


async def _closed(front: Front, plan: Plan, size: int, first: int, seconds: float) -> Told:
    """From a process of its own: at full speed the client takes a core's time, and must not wait for ours."""
    task = Task(front.address, MODEL, size, plan.connections, seconds, first)
    process = await asyncio.create_subprocess_exec(*_CLIENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    output, _ = await process.communicate(msgspec.json.encode(task))
    return msgspec.json.decode(output, type=Told)


async def _open(front: Front, plan: Plan, size: int, first: int, seconds: float) -> Told:
    conversations, client = Conversations(size, MODEL), Client(front.address)
    arrivals = poisson(plan.rates[size], seconds, Random(first))
    cpu = time.process_time()
    exchanges = await client.run(arrivals, lambda number: chat(conversations.body(first + number)))
    cpu = time.process_time() - cpu
    client.close()
    failures = sum(exchange.status != 200 for exchange in exchanges)
    return Told(len(exchanges), failures, seconds, cpu, [exchange.latency_s for exchange in exchanges])
