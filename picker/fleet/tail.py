"""Reads the event stream into the mirror, page by page.

It alone moves the cursor, so nothing passes by while a snapshot is being loaded. The cursor outlives an outage:
sequence numbers make repeats harmless, and what was missed shows as a gap or as a count that the mirror has not
reached.
"""

from __future__ import annotations

import asyncio
import time

from picker.fleet.feed_settings import FeedSettings
from picker.fleet.fence import Fence
from picker.fleet.fences import Fences
from picker.fleet.mirror import Mirror
from picker.fleet.tally import Tally
from picker.redisview.reader import Entry, Reader
from picker.redisview.records import Foreign, KvOp, StreamId

_ENTRY_COST = 16
"""What an entry costs beside its blocks, in blocks."""


class Tail:
    """A place in the event stream. Methods raise what `Reader` does, except Foreign, which is counted."""

    def __init__(self, reader: Reader, mirror: Mirror, tally: Tally, settings: FeedSettings):
        self.is_caught_up = False
        """Whether the last page was the end of the stream."""
        self._reader = reader
        self._mirror = mirror
        self._tally = tally
        self._settings = settings
        self._cursor: StreamId | None = None
        self._slice = 0

    def __repr__(self) -> str:
        return f"<Tail at {self._cursor}{'' if self.is_caught_up else ', behind'}>"

    async def find_cursor(self) -> None:
        """Begins at the stream's end; later, makes sure that the cursor is not beyond it."""
        try:
            last = await self._reader.last_event_id()
        except Foreign:
            self._tally.foreign += 1
            last = (0, 0)
        # A stream that ends before our cursor is another one: emptied, or a replica's that lacked the newest entries.
        self._cursor = last if self._cursor is None else min(self._cursor, last)

    async def take_page(self, block_s: float) -> None:
        """Applies what comes next; waits up to `block_s` seconds for the first event of it."""
        entries = await self._wait_events(block_s)
        for entry in entries:
            await self._apply(entry, self._mirror.fences)
            if entry.event is not None and entry.event.op is KvOp.CLEAR:
                self._mirror.emptied(entry.event.epoch)
            self._cursor = entry.id
        self.is_caught_up = len(entries) < self._settings.page_entries

    async def replay(self, start: StreamId, fences: Fences) -> None:
        """Applies what the stream has for these fences between a snapshot and the cursor. Raises Foreign."""
        limit = self._settings.page_entries
        while self._cursor is not None and start < self._cursor:
            entries = await self._reader.events(start, self._cursor, limit)
            for entry in entries:
                await self._apply(entry, fences)
            if len(entries) < limit:
                return
            start = entries[-1].id

    async def _wait_events(self, block_s: float) -> list[Entry]:
        assert self._cursor is not None
        try:
            return await self._reader.wait_events(self._cursor, self._settings.page_entries, block_s)
        except Foreign:
            self._tally.foreign += 1
            await asyncio.sleep(self._settings.poll_s)
            return []

    async def _apply(self, entry: Entry, fences: Fences) -> None:
        event = entry.event
        if event is None:
            self._tally.foreign += 1
        else:
            for fence in fences.of_epoch(event.epoch):
                if event.op is KvOp.CLEAR and fence.expects(event.seq):
                    await self._empty(fence)
                self._mirror.apply(fence, event, time.monotonic())
                await self._let_go(len(event.blocks))
        await self._let_go(_ENTRY_COST)

    async def _empty(self, fence: Fence) -> None:
        """Forgets all that a worker holds, in slices; meanwhile, which has holes, it does not count."""
        index = self._mirror.index
        was_trusted = index.trusts(fence.slot)
        index.trust(fence.slot, False)
        while fence in self._mirror.fences and not index.forget(fence.slot, self._settings.slice_blocks):
            await asyncio.sleep(0)
        if fence in self._mirror.fences and not fence.is_dirty:
            index.trust(fence.slot, was_trusted)

    async def _let_go(self, blocks: int) -> None:
        """Lets other tasks run once enough has been done since the last time."""
        self._slice += blocks
        if self._slice >= self._settings.slice_blocks:
            self._slice = 0
            await asyncio.sleep(0)
