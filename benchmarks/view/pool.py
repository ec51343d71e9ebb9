"""A pool of workers in Redis, as agents would have written it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
from redis import Redis

from picker.redisview.keys import Keys
from picker.redisview.records import LoadRecord, Snapshot, WorkerRecord, WorkerState, xor_of

KEYS = Keys("benchmark")
_CHAINS = 20
_SHARED_CHAINS = 2
_SHARERS = 8


class Plan(msgspec.Struct, frozen=True):
    """So many workers with so many index blocks each, in chains; a tenth of them are shared by eight workers."""

    workers: int
    blocks: int

    @property
    def chain_blocks(self) -> int:
        """Length of a chain."""
        return self.blocks // _CHAINS

    def chain(self, worker: int, number: int) -> npt.NDArray[np.uint64]:
        """One chain of a worker; the first ones are those that it shares."""
        owner = worker // _SHARERS if number < _SHARED_CHAINS else worker
        seed = (number, owner, self.blocks)
        return np.random.default_rng(seed).integers(1, 2**63, self.chain_blocks, np.uint64)

    def held(self, worker: int) -> list[int]:
        """All blocks of a worker."""
        blocks: list[int] = np.concatenate([self.chain(worker, number) for number in range(_CHAINS)]).tolist()
        return blocks

    def records(self) -> Iterator[WorkerRecord]:
        """All workers; the epoch is the number from 1."""
        for worker in range(self.workers):
            endpoint = f"10.{worker >> 16}.{worker >> 8 & 255}.{worker & 255}:8000"
            yield WorkerRecord(
                worker=endpoint, epoch=worker + 1, endpoint=endpoint, state=WorkerState.READY, models=("m",)
            )


def write(plan: Plan, redis: Redis) -> int:
    """Writes a pool into an empty server; bytes that it takes there."""
    before = redis.info("memory")["used_memory"]
    for number, record in enumerate(plan.records()):
        blocks = plan.held(number)
        load = LoadRecord(record.epoch, 1, 1, kv_seq=0, kv_count=len(blocks), kv_xor=xor_of(blocks))
        pipeline = redis.pipeline(transaction=False)
        pipeline.hset(KEYS.worker(record.worker), mapping={"record": record.pack(), "epoch": record.epoch, "facts": 1})
        pipeline.set(KEYS.snapshot(record.epoch), Snapshot(record.epoch, 0, (0, 0), blocks).pack())
        pipeline.hset(KEYS.load, record.worker, load.pack())
        pipeline.execute()
    return int(redis.info("memory")["used_memory"] - before)
