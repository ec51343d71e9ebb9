"""Fills the view from Redis, and keeps it filled.

Two loops. One polls the load HASH, which says who is there and how busy: `Members` makes workers of it. The other reads
the event stream (`Tail`) into the `Mirror` of what they hold, and reloads from snapshots what is incomplete (`Reload`).

While Redis is away the view is left as it is. Then the loops begin anew at the old cursor. Time, for all judgements
here and in the view, is time watched (`Watch`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import structlog
from redis.asyncio import Redis

from picker.fleet.batches import batches
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.members import Member, Members
from picker.fleet.mirror import Mirror
from picker.fleet.reload import Reload
from picker.fleet.tail import Tail
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.fleet.watch import Watch
from picker.redisview.advice import advice
from picker.redisview.connection import FAILURES, Backoff, reason
from picker.redisview.keys import Keys
from picker.redisview.reader import Loads, Reader, Registration
from picker.redisview.records import Foreign

_log = structlog.get_logger()
_DEFAULTS = FeedSettings()
_TAKEN_AT_ONCE = 32
"""Workers, in about 2 ms; then other tasks run."""


@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """A feed at one moment. `lag_events`: events that agents have counted and the mirror does not contain."""

    connected: bool
    workers: int
    dirty: int
    entries: int
    reloads: int
    foreign: int
    lag_events: int


class Feed:
    """Redis to view, for one pool."""

    def __init__(self, client: Redis, keys: Keys, view: View, settings: FeedSettings = _DEFAULTS):
        self.connected = False
        """Whether Redis answers; while it does not, the view is what it was."""
        self.synced = asyncio.Event()
        """Set once all workers and all snapshots that Redis had at the beginning have been read."""
        self.faults = 0
        """Loops that ended by a defect of ours, and were begun anew."""
        self._view = view
        self._keys = keys
        self._settings = settings
        self._tally = Tally()
        self.watch = Watch(time.monotonic(), settings.watched_step_s)
        """Time watched. Whoever finds that Redis takes no writes holds it."""
        self._reader = Reader(client, keys, settings.deadline_s, settings.max_snapshot_blocks)
        self._mirror = Mirror(view, self._tally)
        self._members = Members(view, self._mirror.fences, self._tally, settings)
        self._tail = Tail(self._reader, self._mirror, self._tally, settings)
        self._reload = Reload(self._reader, self._mirror, self._tail, self.watch, self._tally, settings)
        self._down = {"loads", "events"}
        self._backoffs = {
            name: Backoff(random.Random(), settings.first_retry_s, settings.longest_retry_s) for name in self._down
        }
        self._polled = asyncio.Event()
        self._fields = self._cursor = 0
        self._is_load_foreign = False
        self._logged: type[BaseException] | None = None

    def __repr__(self) -> str:
        return f"<Feed {self.statistics()}>"

    @property
    def foreign(self) -> int:
        """Records that no agent of this schema wrote, ignored."""
        return self._tally.foreign

    def statistics(self) -> FeedStatistics:
        """Named numbers for metrics and tests."""
        return FeedStatistics(
            connected=self.connected,
            workers=self._members.admitted,
            dirty=sum(fence.is_dirty for fence in self._mirror.fences),
            entries=self._tally.entries,
            reloads=self._tally.reloads,
            foreign=self._tally.foreign,
            lag_events=sum(max(0, load.kv_seq - fence.seq) for fence, load in self._members.fenced()),
        )

    async def run(self) -> None:
        """Until cancelled; nothing that Redis does ends it."""
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._keep_up("loads", self._keep_polling), name="feed-loads")
            loops.create_task(self._keep_up("events", self._keep_tailing), name="feed-events")

    async def _keep_up(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        # Failures must not reach the task group. Before Python 3.13 a group that fails just as it is cancelled forgets
        # the cancellation, and one that fails otherwise leaves a cancellation too many in the task's count, so that
        # neither can be told from the other (test_redis_view::test_no_cancellation_is_lost_that_comes_as_redis_goes).
        while True:
            try:
                await loop()
            except FAILURES as error:
                self._note_down(name, error)
            except Exception as fault:
                # A defect of ours must not take down a picker whose view is still good.
                self.faults += 1
                _log.error("feed_failed", at=name, exc_info=fault, consequence="the view stays as it is")
                await asyncio.sleep(self._settings.longest_retry_s)
            await asyncio.sleep(self._backoffs[name].next())

    # Who is there, and how busy.

    async def _keep_polling(self) -> None:
        self._cursor = 0
        self._fields = await self._count_fields()
        while True:
            loads = await self._read_loads()
            if loads is not None:
                await self._take_loads(loads)
                if self._cursor == 0:
                    self._polled.set()
            self._note_up("loads")
            await asyncio.sleep(self._settings.poll_s if loads is None or self._polled.is_set() else 0)

    async def _count_fields(self) -> int:
        try:
            return await self._reader.fields()
        except Foreign:
            return 0

    async def _read_loads(self) -> Loads | None:
        workers = self._members.workers()
        is_littered = self._fields > 2 * len(workers) + self._settings.page_fields
        try:
            if is_littered or self._cursor:
                loads = await self._reader.some_loads(workers, self._cursor, self._settings.page_fields)
            else:
                loads = await self._reader.loads()
        except Foreign:
            self._tally.foreign += 1
            self._note_load_type(is_foreign=True)
            return None
        self._note_load_type(is_foreign=False)
        self._cursor, self._fields = loads.cursor, loads.fields
        return loads

    async def _take_loads(self, loads: Loads) -> None:
        members, now = self._members, self.watch.advance(time.monotonic())
        if isinstance(loads.hash_id, Foreign):
            self._tally.foreign += 1
        else:
            self._mirror.heed_hash(loads.hash_id)
        members.note(loads.packed, now, loads.cursor == 0)
        # Of a thousand workers each part of a poll takes some ms.
        await asyncio.sleep(0)
        for batch in batches(members.unregistered(now), self._settings.registration_batch):
            for part in batches(list(await self._look_up(batch)), _TAKEN_AT_ONCE):
                for member, registration in part:
                    members.take(member, registration, now)
                await asyncio.sleep(0)
        members.update_view(now)
        await asyncio.sleep(0)
        # A mirror that is far behind the whole stream is behind with each worker; reloading would put it back further.
        self._mirror.audit(members.fenced(True), now, None if self._tail.is_caught_up else float("inf"))
        members.retire_missing(now)
        await self._remove_dead(members.retire_stalled(now))

    async def _remove_dead(self, members: Sequence[Member]) -> None:
        for batch in batches(members, self._settings.registration_batch):
            ownerless = [member for member, registration in await self._look_up(batch) if registration is None]
            await self._reader.forget([(member.worker, member.load.epoch) for member in ownerless if member.load])

    async def _look_up(self, members: Sequence[Member]) -> Iterable[tuple[Member, Registration | Foreign | None]]:
        registrations = await self._reader.registrations([member.worker for member in members])
        return zip(members, registrations, strict=True)

    # What they hold.

    async def _keep_tailing(self) -> None:
        self._tail.is_caught_up = False
        await self._polled.wait()
        # Load records of before the catching up: what they count is in the stream by now, or lost.
        loads = list(self._members.fenced())
        await self._tail.find_cursor()
        while not self._tail.is_caught_up:
            await self._tail.take_page(block_s=0.0)
        self._note_up("events")
        self._mirror.audit(loads, self.watch.now, patience_s=0.0)
        await self._reload.restore_due()
        self.synced.set()
        while True:
            await self._tail.take_page(self._settings.poll_s)
            await self._reload.restore_due()

    # Whether Redis answers, and with what.

    def _note_up(self, name: str) -> None:
        self._backoffs[name].reset()
        self._down.discard(name)
        if not self._down and not self.connected:
            self.connected, self._logged = True, None
            self._view.is_live = True
            _log.info("redis_up", workers=self._members.admitted)

    def _note_down(self, name: str, error: BaseException) -> None:
        self._down.add(name)
        self._polled.clear()
        self.connected = self._view.is_live = False
        if self._logged is not type(error):
            self._logged = type(error)
            consequence = "the view stays as it is"
            _log.warning("redis_down", at=name, reason=reason(error), consequence=consequence, advice=advice(error))

    def _note_load_type(self, is_foreign: bool) -> None:
        if is_foreign and not self._is_load_foreign:
            key, consequence = self._keys.load, "the view stays as it is"
            _log.error("load_is_no_hash", key=key, consequence=consequence, advice="delete it: agents write it anew")
        self._is_load_foreign = is_foreign
