"""Restores doubted workers from their snapshots and from what the event stream has since."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from picker.fleet.batches import batches
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.fence import Fence
from picker.fleet.fences import Fences
from picker.fleet.mirror import Mirror
from picker.fleet.tail import Tail
from picker.fleet.tally import Tally
from picker.fleet.watch import Watch
from picker.redisview.reader import Holding, Reader
from picker.redisview.records import Foreign, Snapshot, StreamId


class Reload:
    """Loads snapshots, in slices between which other tasks run."""

    def __init__(self, reader: Reader, mirror: Mirror, tail: Tail, watch: Watch, tally: Tally, settings: FeedSettings):
        self._reader = reader
        self._mirror = mirror
        self._tail = tail
        self._watch = watch
        self._tally = tally
        self._settings = settings

    async def restore_due(self) -> None:
        """Tries to restore all workers that are due. Raises what `Reader` does, except Foreign, which is counted."""
        fences = self._mirror.due(self._watch.now)
        if fences:
            await self._tail.find_cursor()
        for batch in batches(fences, self._settings.reload_workers):
            current = [fence for fence in batch if fence in self._mirror.fences]
            if not current:
                continue
            try:
                await self._restore_batch(current)
            except Foreign:
                self._tally.foreign += 1
                self._mirror.doubt_all(current)
            except BaseException:
                # Restored in part, they would be neither trusted nor reloaded.
                self._mirror.doubt_all(current)
                raise

    async def _restore_batch(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            fence.attempt(self._watch.now)
        restored = Fences()
        starts: list[StreamId] = []
        holdings = await self._reader.holdings([(fence.worker, fence.epoch) for fence in fences])
        for fence, holding in zip(fences, holdings, strict=True):
            snapshot = await self._snapshot(fence, holding)
            if snapshot is not None and await self._restore(fence, snapshot):
                restored.add(fence)
                # A snapshot that is up to date spares a reading of the stream since it was made, hours perhaps.
                if holding.kv_seq > snapshot.seq:
                    starts.append(snapshot.stream_id)
        if starts:
            await self._tail.replay(min(starts), restored)
        await self._conclude(fences)

    async def _snapshot(self, fence: Fence, holding: Holding) -> Snapshot | None:
        # One after the other, so that only one is in memory.
        try:
            if isinstance(holding.snapshot_bytes, Foreign):
                raise holding.snapshot_bytes
            return await self._reader.snapshot(fence.epoch) if holding.snapshot_bytes else None
        except Foreign:
            self._tally.foreign += 1
            return None

    async def _restore(self, fence: Fence, snapshot: Snapshot) -> bool:
        """Makes a slot hold what the snapshot says, in slices; False if its worker went away meanwhile."""
        index, size = self._mirror.index, self._settings.slice_blocks
        if snapshot.epoch != fence.epoch or fence not in self._mirror.fences:
            return False
        index.trust(fence.slot, False)
        while not index.forget(fence.slot, size):
            await asyncio.sleep(0)
            if fence not in self._mirror.fences:
                return False
        for part in batches(snapshot.blocks, size):
            self._mirror.restore(fence, part, time.monotonic())
            await asyncio.sleep(0)
            if fence not in self._mirror.fences:
                return False
        fence.restart(snapshot.seq)
        return True

    async def _conclude(self, fences: Iterable[Fence]) -> None:
        current = [fence for fence in fences if fence in self._mirror.fences]
        wanted = [fence.epoch for fence in current if not self._mirror.settle(fence) or fence.is_stubborn]
        if wanted:
            await self._reader.want(wanted)
