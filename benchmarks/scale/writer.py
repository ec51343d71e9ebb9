"""What the agents of many workers write, from one process: loads once a second each, and events of their caches.

python -m benchmarks.scale.writer, with a Task as JSON in the first line of its input, and a rate in each line after it:
events a second of all workers. It runs until its input ends.
"""

from __future__ import annotations

import select
import sys
import time
from collections import deque
from io import FileIO
from itertools import cycle, islice
from random import Random

import msgspec
from redis import Redis

from benchmarks.view.pool import KEYS, Plan
from picker.redisview.records import KvEvent, KvOp, LoadRecord, xor_of

EVENT_BLOCKS = 16
"""Of one event: 1,024 tokens, what an engine computes or drops in a step or two."""
_TICK_S = 0.02


class Task(msgspec.Struct, frozen=True):
    """A pool that stands in this Redis (`benchmarks.view.pool.write`)."""

    url: str
    plan: Plan


class _Worker:
    """One worker's events: as many blocks go as come."""

    def __init__(self, epoch: int, held: list[int]):
        self.epoch = epoch
        self.seq = self.beat = 0
        self.count, self.xor = len(held), xor_of(held)
        self._new: deque[tuple[int, ...]] = deque()
        self._rng = Random(epoch)

    def event(self) -> bytes:
        """The next one; stores and removals take turns."""
        self.seq += 1
        is_store = self.seq % 2 == 1
        if is_store:
            self._new.append(tuple(self._rng.getrandbits(64) for _ in range(EVENT_BLOCKS)))
        blocks = self._new[-1] if is_store else self._new.popleft()
        self.xor ^= xor_of(blocks)
        self.count += EVENT_BLOCKS if is_store else -EVENT_BLOCKS
        return KvEvent(self.epoch, self.seq, KvOp.STORE if is_store else KvOp.REMOVE, blocks).pack()

    def load(self) -> bytes:
        """As of now."""
        self.beat += 1
        running = self._rng.randrange(8)
        return LoadRecord(
            self.epoch, 1 + self.beat, 1, running=running, kv_used=0.5,
            kv_seq=self.seq, kv_count=self.count, kv_xor=self.xor,
        ).pack()  # fmt: skip


class _Pace:
    """How many are due now, at a rate that may change."""

    def __init__(self, per_s: float):
        self._per_s = per_s
        self._owed = 0.0
        self._at = time.monotonic()

    def change(self, per_s: float) -> None:
        """From now on."""
        self._per_s, self._owed = per_s, 0.0

    def due(self) -> int:
        """Since it was asked last."""
        now = time.monotonic()
        self._owed += (now - self._at) * self._per_s
        self._at = now
        whole = int(self._owed)
        self._owed -= whole
        return whole


def main(asked: FileIO) -> None:
    """Writes at the rate that was asked for, as far as this process can."""
    task = msgspec.json.decode(asked.readline(), type=Task)
    records = list(task.plan.records())
    workers = [_Worker(record.epoch, task.plan.held(number)) for number, record in enumerate(records)]
    turns, beats = cycle(workers), cycle(zip(records, workers, strict=True))
    events, loads = _Pace(0.0), _Pace(len(workers))
    with Redis.from_url(task.url) as redis:
        while True:
            if select.select([asked], [], [], _TICK_S)[0]:
                if not (line := asked.readline()):
                    return
                events.change(float(line))
            pipeline = redis.pipeline(transaction=False)
            for worker in islice(turns, events.due()):
                pipeline.xadd(KEYS.events, {"e": worker.event()}, maxlen=100_000, approximate=True)
            for record, worker in islice(beats, loads.due()):
                pipeline.hset(KEYS.load, record.worker, worker.load())
            pipeline.execute()


if __name__ == "__main__":
    # Without a buffer: a line that waits in one is not seen by `select`.
    main(FileIO(sys.stdin.fileno()))
