"""A picker's view of one pool, fed while it is written to, without picks and with as many as there is time for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from random import Random

import msgspec
import numpy as np
from redis.asyncio import Redis

from benchmarks.common.memory import resident_bytes
from benchmarks.pick.subject import Subject
from benchmarks.scale import writer
from benchmarks.view.pool import KEYS, Plan
from picker.agent.publisher import Publisher
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.view import View
from picker.redisview.connection import connect
from picker.redisview.records import WorkerRecord, WorkerState

_NEVER_S = 1e9
_MARKER = WorkerRecord(worker="marker", epoch=1 << 60, endpoint="10.9.9.9:1", state=WorkerState.READY, models=("m",))
_LATE_S = 10.0


class Row(msgspec.Struct, frozen=True):
    """At one rate of events. `applied_per_s` is less than `events_per_s` where the feed, or the writer, is too slow.

    `quiet_cpu`: share of a core that the process takes without picks. `picks_per_s`: with all the rest of one core.
    `lag...`: from an agent's hearing of a block to its being in the mirror, without and with picks. `dirty`: workers
    whose prefixes do not count at the end.
    """

    events_per_s: float
    applied_per_s: float
    quiet_cpu: float
    lag_p50_ms: float
    lag_p99_ms: float
    picks_per_s: float
    busy_lag_p50_ms: float
    busy_lag_p99_ms: float
    memory_mb: float
    dirty: int


async def measure(url: str, plan: Plan, rates: list[float], seconds: float) -> list[Row]:
    """One row for each rate. The pool stands in this Redis already."""
    client = connect(url, KEYS)
    view = View(stale_after_s=_NEVER_S)
    settings = FeedSettings(retire_after_s=_NEVER_S, missing_grace_s=_NEVER_S)
    feed = Feed(client, KEYS, view, settings)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(feed.run())
        marker = _Marker(client, view)
        publishing = tasks.create_task(marker.publisher.run())
        while not feed.synced.is_set() or feed.statistics().dirty or len(view.usable_endpoints()) <= plan.workers:
            await asyncio.sleep(0.05)
        subject = Subject(plan.workers, 2048, view=view, model="m")
        rows = []
        with _written(writer.Task(url, plan)) as asks:
            for rate in rates:
                asks(rate)
                rows.append(await _row(feed, marker, subject, rate, seconds))
                asks(0.0)
                await _caught_up(feed)
        subject.close()
        for task in (running, publishing):
            task.cancel()
    await client.aclose()
    return rows


async def _row(feed: Feed, marker: _Marker, subject: Subject, rate: float, seconds: float) -> Row:
    await asyncio.sleep(1.0)
    applied, cpu, started = feed.statistics().entries, time.process_time(), time.monotonic()
    async with marker.marking() as lags:
        await asyncio.sleep(seconds)
    elapsed = time.monotonic() - started
    applied, cpu = feed.statistics().entries - applied, time.process_time() - cpu
    async with marker.marking() as busy_lags:
        picks_per_s = await _picks_per_s(subject, seconds)
    (p50, p99), (busy_p50, busy_p99) = (np.percentile(each, [50, 99]).tolist() for each in (lags, busy_lags))
    rest = resident_bytes(os.getpid()) / 2**20, feed.statistics().dirty
    return Row(rate, applied / elapsed, cpu / elapsed, p50, p99, picks_per_s, busy_p50, busy_p99, *rest)


async def _picks_per_s(subject: Subject, seconds: float) -> float:
    """One after the other; the loop goes round after each, as it does when requests come in by a socket."""
    number, took, over_at = subject.numbers, 0, time.monotonic() + seconds
    started = time.monotonic()
    while time.monotonic() < over_at:
        subject.answer(subject.prepare(next(number)))
        took += 1
        await asyncio.sleep(0)
    return took / (time.monotonic() - started)


async def _caught_up(feed: Feed) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LATE_S):
            while feed.statistics().lag_events:
                await asyncio.sleep(0.05)


@contextlib.contextmanager
def _written(task: writer.Task) -> Iterator[Callable[[float], None]]:
    """A writer; it is told its rate by what this gives."""
    command = [sys.executable, "-m", "benchmarks.scale.writer"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdin
        say = process.stdin
        say.write(msgspec.json.encode(task).decode() + "\n")
        yield lambda rate: print(rate, file=say, flush=True)


class _Marker:
    """A worker of our own, whose events tell how late all of them are."""

    def __init__(self, client: Redis, view: View):
        self.publisher = Publisher(client, KEYS)
        self.publisher.begin(_MARKER)
        self._view = view
        self._rng = Random(1)

    @contextlib.asynccontextmanager
    async def marking(self) -> AsyncIterator[list[float]]:
        """Milliseconds of each mark, for as long as the block lasts."""
        lags = list[float]()
        async with asyncio.TaskGroup() as tasks:
            marking = tasks.create_task(self._mark(lags))
            yield lags
            marking.cancel()

    async def _mark(self, lags: list[float]) -> None:
        while True:
            block = self._rng.getrandbits(63)
            started = time.monotonic()
            self.publisher.stored([block])
            while not self._view.index.owners(block):
                await asyncio.sleep(0.001)
            lags.append(1000 * (time.monotonic() - started))
            await asyncio.sleep(self._rng.uniform(0.0, 0.1))
