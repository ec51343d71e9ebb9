"""One pool, in a process of its own: a feed that reads it, and all that is measured of it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec
import numpy as np
import structlog
import uvloop
from redis import Redis as BlockingRedis

from benchmarks.common.memory import resident_bytes
from benchmarks.view.alternatives import Asking
from benchmarks.view.index_choice import Choice, compare
from benchmarks.view.pool import KEYS, Plan
from picker.agent.publisher import Publisher
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.view import View
from picker.redisview.connection import connect
from picker.redisview.records import KvEvent, KvOp, WorkerRecord, WorkerState

PROMPT_BLOCKS = 2048
_NEVER_S = 1e9


class Task(msgspec.Struct, frozen=True):
    """A pool that stands in this Redis."""

    url: str
    plan: Plan
    lookups: int
    events: int
    lags: int


class Times(msgspec.Struct, frozen=True):
    """Microseconds."""

    p50: float
    p99: float


class LookUp(msgspec.Struct, frozen=True):
    """One kind of prompt: how deep the deepest worker holds it, and what finding that out takes."""

    prompt: str
    depth: int
    mget: Times
    script: Times
    mirror: Times


class Measurement(msgspec.Struct, frozen=True):
    """Of one pool. Seconds, bytes, blocks a second, milliseconds for lag and holding."""

    plan: Plan
    by_load_s: float
    by_prefix_s: float
    held_ms: float
    picker_bytes: int
    lookups: list[LookUp]
    applied_per_s: float
    lag_ms: Times
    choices: list[Choice]


async def measure(task: Task) -> Measurement:
    """All of it, one after the other."""
    client = connect(task.url, KEYS)
    view = View(stale_after_s=_NEVER_S)
    feed = Feed(client, KEYS, view, FeedSettings(retire_after_s=_NEVER_S, missing_grace_s=_NEVER_S))
    # As `picker serve` does.
    gc.collect()
    gc.freeze()
    before = resident_bytes(os.getpid())
    async with _stalls() as stalls:
        running = asyncio.ensure_future(feed.run())
        started = time.perf_counter()
        while len(view.usable_endpoints()) < task.plan.workers:
            await asyncio.sleep(0.001)
        by_load_s = time.perf_counter() - started
        while not feed.synced.is_set() or feed.statistics().dirty:
            await asyncio.sleep(0.01)
        by_prefix_s = time.perf_counter() - started
    picker_bytes = resident_bytes(os.getpid()) - before
    try:
        return Measurement(
            plan=task.plan,
            by_load_s=by_load_s,
            by_prefix_s=by_prefix_s,
            held_ms=max(stalls) * 1e3,
            picker_bytes=picker_bytes,
            lookups=await _look_up(task, view),
            applied_per_s=await _apply(task, feed),
            lag_ms=await _lag(task, view),
            choices=compare(task.plan, view.index, picker_bytes),
        )
    finally:
        running.cancel()
        await asyncio.wait([running])
        await client.aclose()


@contextlib.asynccontextmanager
async def _stalls() -> AsyncIterator[list[float]]:
    """CPU seconds of this thread between two runs of a task that wants to run every millisecond."""
    held = [0.0]

    async def tick() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            held.append(time.thread_time() - before)

    ticking = asyncio.ensure_future(tick())
    try:
        yield held
    finally:
        ticking.cancel()


async def _look_up(task: Task, view: View) -> list[LookUp]:
    asking = Asking(connect(task.url, KEYS))
    unknown: list[int] = np.random.default_rng(9).integers(1, 2**63, PROMPT_BLOCKS, np.uint64).tolist()
    shared, own = task.plan.chain(0, 0).tolist(), task.plan.chain(0, 5).tolist()
    prompts = {
        "nobody knows": unknown,
        "eight know the beginning": [*shared[:64], *unknown[64:]],
        "known as deep as may be": [*own, *unknown][:PROMPT_BLOCKS],
    }
    sharers = list(range(min(8, task.plan.workers)))
    with BlockingRedis.from_url(task.url) as redis:
        asking.write(redis, dict.fromkeys(shared, sharers) | {block: [0] for block in own})
    found = []
    for name, chain in prompts.items():
        depth = int(view.hit_blocks(chain).max())
        assert max((await asking.all_blocks(chain)).values(), default=0) == depth
        assert max((await asking.bisect(chain)).values(), default=0) == depth
        few = max(20, task.lookups // 20)
        found.append(
            LookUp(
                prompt=name,
                depth=depth,
                mget=await _timed(asking.all_blocks, chain, few),
                script=await _timed(asking.bisect, chain, few),
                mirror=await _timed(_at_once(view), chain, task.lookups),
            )
        )
    return found


def _at_once(view: View) -> Callable[[Sequence[int]], Awaitable[object]]:
    async def look_up(chain: Sequence[int]) -> object:
        return view.hit_blocks(chain)

    return look_up


async def _timed(call: Callable[[Sequence[int]], Awaitable[object]], chain: Sequence[int], times: int) -> Times:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        await call(chain)
        taken.append((time.perf_counter() - started) * 1e6)
    return _times(taken)


def _times(taken: Sequence[float]) -> Times:
    p50, p99 = np.percentile(taken, [50, 99]).tolist()
    return Times(p50, p99)


async def _apply(task: Task, feed: Feed) -> float:
    """Blocks a second. The events are written while the loop is held, so that they are all there when it goes on."""
    rng = np.random.default_rng(3)
    goal, entries = feed.statistics().entries + task.events, []
    for number in range(task.events // 2):
        epoch, seq = number % task.plan.workers + 1, 2 * (number // task.plan.workers) + 1
        blocks = tuple(rng.integers(1, 2**63, 128, np.uint64).tolist())
        entries += [KvEvent(epoch, seq, KvOp.STORE, blocks), KvEvent(epoch, seq + 1, KvOp.REMOVE, blocks)]
    with BlockingRedis.from_url(task.url) as redis:
        pipeline = redis.pipeline(transaction=False)
        for entry in entries:
            pipeline.xadd(KEYS.events, {"e": entry.pack()})
        pipeline.execute()
    started = time.perf_counter()
    while feed.statistics().entries < goal:
        await asyncio.sleep(0.005)
    return task.events * 128 / (time.perf_counter() - started)


async def _lag(task: Task, view: View) -> Times:
    """Milliseconds from an agent's hearing of a block to its being in the mirror, at random moments."""
    client = connect(task.url, KEYS)
    publisher = Publisher(client, KEYS)
    record = WorkerRecord(
        worker="lag", epoch=random.getrandbits(62), endpoint="10.9.9.9:1", state=WorkerState.READY, models=("m",)
    )
    publisher.begin(record)
    running = asyncio.ensure_future(publisher.run())
    while (slot := view.slot_of("lag", record.epoch)) is None or not view.index.trusts(slot):
        await asyncio.sleep(0.01)
    taken = []
    for block in range(1, task.lags + 1):
        await asyncio.sleep(random.uniform(0.0, 0.05))
        started = time.perf_counter()
        publisher.stored([block])
        while not view.index.owners(block) >> slot & 1:
            await asyncio.sleep(0.0005)
        taken.append((time.perf_counter() - started) * 1e3)
    running.cancel()
    await asyncio.wait([running])
    await client.aclose()
    return _times(taken)


if __name__ == "__main__":
    # The answer goes to where the log would go otherwise.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(measure(wanted))))
