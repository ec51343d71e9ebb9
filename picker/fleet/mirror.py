"""The prefix index as the agents' events make it, and whether it can be believed; without I/O.

Each worker's events pass its `Fence`. A worker whose mirror is incomplete is doubted: it stays in the picks and gets no
credit for its cache until `picker.fleet.reload` has restored it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import structlog

from picker.fleet.fence import Arrival, Fence
from picker.fleet.fences import Fences
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.prompts.chain import HASH_ID
from picker.redisview.records import KvEvent, KvOp, LoadRecord

_log = structlog.get_logger()


class Mirror:
    """What workers hold, in one view. Times are time watched, in seconds, unless said otherwise."""

    def __init__(self, view: View, tally: Tally):
        self.fences = Fences()
        self.index = view.index
        self._view = view
        self._inflight = view.inflight
        self._tally = tally
        self._is_hash_ours = True

    def __repr__(self) -> str:
        return f"<Mirror {self.fences!r}, {self.index!r}>"

    def apply(self, fence: Fence, event: KvEvent, now: float) -> None:
        """An event of this fence's epoch has come. `now`: by the process' monotonic clock, as bookings have it."""
        if fence not in self.fences:
            return
        arrival = fence.offer(event.seq)
        if arrival is Arrival.APPLY:
            self._tally.entries += 1
            self._change(fence.slot, event, now)
        elif arrival is Arrival.GAP:
            self.doubt(fence)

    def emptied(self, epoch: int) -> None:
        """The worker of this epoch says that its cache is empty; also one that announces nothing else."""
        for slot in self._view.slots_of(np.array([epoch], np.uint64)).tolist():
            if slot >= 0:
                self._view.speculative.clear(slot)
                self._view.approximate.clear(slot)
                self._view.unheard.clear(slot)

    def restore(self, fence: Fence, blocks: Sequence[int], now: float) -> None:
        """These blocks of a snapshot are on this worker. `now`: as for `apply`."""
        self.index.store(fence.slot, blocks)
        self._view.speculative.confirm(fence.slot, blocks)
        if self._inflight.awaited:
            for block in blocks:
                self._inflight.found(fence.slot, block, now)

    def audit(self, loads: Iterable[tuple[Fence, LoadRecord]], now: float, patience_s: float | None = None) -> None:
        """Doubts the mirrors that cannot be what these load records count. `patience_s`: see `Fence.agrees`."""
        for fence, load in loads:
            said, held = (load.kv_count, load.kv_xor), self.index.digest(fence.slot)
            if not fence.is_dirty and not fence.agrees(load.kv_seq, said, held, now, patience_s):
                self.doubt(fence)

    def doubt(self, fence: Fence) -> None:
        """Something of this worker is missing, or may be."""
        fence.lose()
        if fence in self.fences:
            self.index.trust(fence.slot, False)

    def doubt_all(self, fences: Iterable[Fence]) -> None:
        """Something of all these workers may be missing."""
        for fence in fences:
            self.doubt(fence)

    def due(self, now: float) -> list[Fence]:
        """The workers that a snapshot may restore now."""
        if not self._is_hash_ours:
            return []
        return [fence for fence in self.fences if fence.is_dirty and fence.retry_at <= now]

    def settle(self, fence: Fence) -> bool:
        """Believes a worker that has been restored, unless it has been doubted again: then it is False."""
        if not fence.is_dirty and self._is_hash_ours:
            self._tally.reloads += 1
            self.index.trust(fence.slot, True)
            self._view.unheard.clear(fence.slot)
        return not fence.is_dirty

    def heed_hash(self, hash_id: str | None) -> None:
        """What agents hash blocks with; None if none has said so. With another hash than ours, no cache counts."""
        is_ours = hash_id in (None, HASH_ID)
        if is_ours == self._is_hash_ours:
            return
        self._is_hash_ours = is_ours
        if is_ours:
            _log.info("hash_agrees", hash=HASH_ID)
            return
        _log.error("hash_differs", agents=hash_id, ours=HASH_ID, consequence="no worker gets credit for its cache")
        self.doubt_all(self.fences)

    def _change(self, slot: int, event: KvEvent, now: float) -> None:
        if event.op is KvOp.REMOVE:
            self.index.remove(slot, event.blocks)
        elif event.op is KvOp.CLEAR:
            self.index.clear(slot)
        else:
            self.index.store(slot, event.blocks)
            self._view.speculative.confirm(slot, event.blocks)
            if self._inflight.awaited:
                for block in event.blocks:
                    self._inflight.announced(slot, block, now)
