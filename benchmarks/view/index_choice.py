"""The prefix index as it is, against sorted arrays with the same content."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from benchmarks.view.pool import Plan
from picker.fleet.index import PrefixIndex, depths


class SortedArrays:
    """Blocks in one sorted array, owners as rows of bits beside it; new blocks are merged in."""

    def __init__(self, plan: Plan):
        held = [np.array(plan.held(worker), np.uint64) for worker in range(plan.workers)]
        self.blocks = np.unique(np.concatenate(held))
        self.words = (plan.workers + 63) // 64
        self.owners = np.zeros((len(self.blocks), self.words), np.uint64)
        for worker, blocks in enumerate(held):
            self.owners[np.searchsorted(self.blocks, blocks), worker // 64] |= np.uint64(1 << worker % 64)

    @property
    def bytes(self) -> int:
        """Of both arrays."""
        return self.blocks.nbytes + self.owners.nbytes

    def mask(self, block: int) -> int:
        """The owners of a block, as an int."""
        at = int(np.searchsorted(self.blocks, np.uint64(block)))
        if at == len(self.blocks) or self.blocks[at] != block:
            return 0
        return int.from_bytes(self.owners[at].tobytes(), "little")

    def store(self, worker: int, blocks: Sequence[int]) -> None:
        """One event's blocks, all of them new."""
        new = np.sort(np.array(blocks, np.uint64))
        at = np.searchsorted(self.blocks, new)
        rows = np.zeros((len(new), self.words), np.uint64)
        rows[:, worker // 64] = np.uint64(1 << worker % 64)
        self.blocks = np.insert(self.blocks, at, new)
        self.owners = np.insert(self.owners, at, rows, axis=0)


class Choice(msgspec.Struct, frozen=True):
    """Of one kind of index. Bytes for one block of one worker."""

    kind: str
    bytes_each: float
    lookup_us: float
    store_us_each: float


def compare(plan: Plan, index: PrefixIndex, index_bytes: int) -> list[Choice]:
    """Both kinds; `index` has the plan's content already and takes so many bytes."""
    arrays, memberships = SortedArrays(plan), plan.workers * plan.blocks
    prompt = [*plan.chain(0, 0).tolist(), *np.random.default_rng(1).integers(1, 2**63, 1800, np.uint64).tolist()]
    event = np.random.default_rng(2).integers(1, 2**63, (64, 128), np.uint64).tolist()
    return [
        Choice("dict of bit masks", index_bytes / memberships, _us(lambda: depths(prompt, index.owners), 300),
               _store_us(lambda blocks: index.store(0, blocks), event)),
        Choice("sorted arrays", arrays.bytes / memberships, _us(lambda: depths(prompt, arrays.mask), 300),
               _store_us(lambda blocks: arrays.store(0, blocks), event[:8])),
    ]  # fmt: skip


def _us(call: Callable[[], object], times: int) -> float:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken) * 1e6)


def _store_us(store: Callable[[list[int]], None], events: Sequence[list[int]]) -> float:
    started = time.perf_counter()
    for blocks in events:
        store(blocks)
    return (time.perf_counter() - started) * 1e6 / sum(map(len, events))
