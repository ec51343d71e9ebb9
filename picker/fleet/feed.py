"""Fills the view from Redis, and keeps it filled.

Two loops. One polls the load HASH, which says who is there and how busy; it admits, updates and retires workers. The
other tails the event stream into the prefix index and reloads from snapshots what a `Fence` found incomplete; it alone
moves the cursor, so nothing passes by while a snapshot is being loaded.

While Redis is away the view is left as it is. Then the loops begin anew at the old cursor: sequence numbers make
repeats harmless, and what was missed shows as a gap or as a count that the mirror has not reached.

Time, for all judgements here and in the view, is time watched: it stands still while Redis cannot be read. That a beat
did not move, or a worker was not listed, in an hour nobody looked, says nothing about the worker.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import structlog
from redis.asyncio import Redis

from picker.fleet.endpoints import canonical
from picker.fleet.fence import Arrival, Fence, FenceSettings
from picker.fleet.view import View
from picker.prompts.chain import HASH_ID
from picker.redisview.connection import FAILURES, Backoff, reason
from picker.redisview.keys import Keys
from picker.redisview.reader import Entry, Reader, Registration
from picker.redisview.records import Foreign, KvEvent, KvOp, LoadRecord, Snapshot, StreamId, WorkerRecord

_log = structlog.get_logger()
_T = TypeVar("_T")
_ENTRY_COST = 16
"""What an entry costs beside its blocks, in blocks."""


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Times in seconds.

    `missing_grace_s`: a worker that the load HASH does not list any more is kept so long; an emptied Redis lists none
    until the agents have come back. `retire_after_s`: one whose beat stands still is retired after so long, and
    removed from Redis if its lease is over. `slice_blocks`: the loop is let go after so many (about 1 ms).
    `reload_workers`: snapshots that are loaded at once. `watched_step_s`: the most that one poll adds to time watched.
    """

    poll_s: float = 0.1
    missing_grace_s: float = 5.0
    retire_after_s: float = 30.0
    max_workers: int = 4096
    page_entries: int = 256
    slice_blocks: int = 2000
    reload_workers: int = 8
    registration_batch: int = 256
    watched_step_s: float = 1.0
    deadline_s: float = 1.0
    first_retry_s: float = 0.05
    longest_retry_s: float = 2.0
    fence: FenceSettings = field(default_factory=FenceSettings)


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


@dataclass(slots=True, eq=False)
class _Member:
    """A field of the load HASH. `known`: epoch and facts of the worker's record as the view has it."""

    worker: str
    seen_at: float
    moved_at: float
    packed: bytes | None = None
    load: LoadRecord | None = None
    is_changed: bool = False
    known: tuple[int, int] | None = None
    slot: int | None = None


class _Watch:
    """Time watched: moves only with polls that succeed, and at most by one step with each."""

    def __init__(self, longest_step_s: float):
        self.now = self._read_at = time.monotonic()
        self._longest_step_s = longest_step_s

    def advance(self) -> float:
        """A poll has succeeded."""
        read_at = time.monotonic()
        self.now += min(read_at - self._read_at, self._longest_step_s)
        self._read_at = read_at
        return self.now


class Feed:
    """Redis to view, for one pool."""

    def __init__(self, client: Redis, keys: Keys, view: View, settings: FeedSettings = FeedSettings()):
        self.connected = False
        """Whether Redis answers; while it does not, the view is what it was."""
        self.synced = asyncio.Event()
        """Set once all workers and all snapshots that Redis had at the beginning have been read."""
        self.foreign = 0
        """Records that no agent of this schema wrote, ignored."""
        self.faults = 0
        """Loops that ended by a defect of ours, and were begun anew."""
        self._view = view
        self._settings = settings
        self._reader = Reader(client, keys, settings.deadline_s)
        self._down = {"loads", "events"}
        self._backoffs = {
            name: Backoff(random.Random(), settings.first_retry_s, settings.longest_retry_s) for name in self._down
        }
        self._polled = asyncio.Event()
        self._watch = _Watch(settings.watched_step_s)
        self._members: dict[str, _Member] = {}
        self._fences: dict[int, Fence] = {}
        self._cursor: StreamId | None = None
        self._is_caught_up = False
        self._hash_agrees = True
        self._is_full = False
        self._is_down_logged = False
        self._slice = 0
        self._entries = 0
        self._reloads = 0

    def __repr__(self) -> str:
        return f"<Feed {self.statistics()}>"

    def statistics(self) -> FeedStatistics:
        """Named numbers for metrics and tests."""
        return FeedStatistics(
            connected=self.connected,
            workers=sum(member.slot is not None for member in self._members.values()),
            dirty=sum(fence.is_dirty for fence in self._fences.values()),
            entries=self._entries,
            reloads=self._reloads,
            foreign=self.foreign,
            lag_events=sum(max(0, load.kv_seq - fence.seq) for fence, load in self._fenced(self._members.values())),
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

    async def _find_cursor(self) -> None:
        try:
            last = await self._reader.last_event_id()
        except Foreign:
            self.foreign += 1
            last = (0, 0)
        # A stream that ends before our cursor is another one: emptied, or a replica's that lacked the newest entries.
        self._cursor = last if self._cursor is None else min(self._cursor, last)

    # Who is there, and how busy.

    async def _keep_polling(self) -> None:
        while True:
            await self._poll()
            self._note_up("loads")
            self._polled.set()
            await asyncio.sleep(self._settings.poll_s)

    async def _poll(self) -> None:
        try:
            loads = await self._reader.loads()
        except Foreign:
            self.foreign += 1
            return
        now = self._watch.advance()
        self._heed_hash(loads.hash_id)
        self._note_loads(loads.packed, now)
        listed = [member for member in self._members.values() if member.seen_at == now]
        await self._register([member for member in listed if self._is_unregistered(member, now)], now)
        self._update_view(listed, now)
        self._retire_missing(now)
        await self._retire_stalled([member for member in listed if self._is_stalled(member, now)])

    def _note_loads(self, packed: dict[str, bytes], now: float) -> None:
        for worker, data in packed.items():
            member = self._member(worker, now)
            if member is not None:
                member.seen_at = now
                member.is_changed = data != member.packed
                if member.is_changed:
                    self._note_load(member, data, now)

    def _member(self, worker: str, now: float) -> _Member | None:
        member = self._members.get(worker)
        if member is None and len(self._members) < self._settings.max_workers:
            member = self._members[worker] = _Member(worker, seen_at=now, moved_at=now)
        if member is None and not self._is_full:
            self._is_full = True
            _log.error("too_many_workers", limit=self._settings.max_workers, consequence="the rest is not picked")
        return member

    def _note_load(self, member: _Member, data: bytes, now: float) -> None:
        member.packed = data
        try:
            load = LoadRecord.unpack(data)
        except Foreign:
            self.foreign += 1
            return
        if member.load is None or (load.epoch, load.beat) != (member.load.epoch, member.load.beat):
            member.moved_at = now
        member.load = load

    def _is_stalled(self, member: _Member, now: float) -> bool:
        return now - member.moved_at > self._settings.retire_after_s

    def _is_unregistered(self, member: _Member, now: float) -> bool:
        load = member.load
        return load is not None and member.known != (load.epoch, load.facts) and not self._is_stalled(member, now)

    async def _register(self, members: Sequence[_Member], now: float) -> None:
        for batch in _batches(members, self._settings.registration_batch):
            registrations = await self._reader.registrations([member.worker for member in batch])
            for member, registration in zip(batch, registrations, strict=True):
                if isinstance(registration, Foreign):
                    self.foreign += 1
                elif registration is not None:
                    self._take_registration(member, registration, now)

    def _take_registration(self, member: _Member, registration: Registration, now: float) -> None:
        record = _with_canonical_endpoint(registration.record)
        if record is None:
            self._refuse_endpoint(member, registration)
            return
        # Another epoch in the load record is that of an agent that was replaced and does not know it yet.
        if member.load is None or record.epoch != member.load.epoch:
            return
        slot = self._view.slot_of(record.worker, record.epoch)
        if slot is None:
            self._drop_fence(member)
            slot = self._view.admit(record, now)
        else:
            self._view.update_facts(slot, record)
        member.slot, member.known = slot, (record.epoch, registration.facts)
        self._ensure_fence(record, slot)

    def _refuse_endpoint(self, member: _Member, registration: Registration) -> None:
        """It would stand in a header as it is: Envoy ignores a name and takes a comma for the next endpoint."""
        self.foreign += 1
        # Known, so that it is not looked up again before it changes.
        self._retire(member)
        member.known = (registration.record.epoch, registration.facts)
        _log.error("worker_endpoint_unusable", worker=member.worker, advice="it must be ip:port, IPv6 in brackets")

    def _ensure_fence(self, record: WorkerRecord, slot: int) -> None:
        if record.publishes_kv and record.epoch not in self._fences:
            self._fences[record.epoch] = Fence(record.worker, record.epoch, slot, self._settings.fence)

    def _update_view(self, members: Iterable[_Member], now: float) -> None:
        for member in members:
            if member.slot is not None and member.load is not None and _epoch(member) == member.load.epoch:
                self._view.update_load(member.slot, member.load, now)
        # A mirror that is far behind the whole stream is behind with each worker; reloading would put it back further.
        patience_s = None if self._is_caught_up else float("inf")
        self._audit(self._fenced(member for member in members if member.is_changed), now, patience_s)

    def _retire_missing(self, now: float) -> None:
        for member in list(self._members.values()):
            if now - member.seen_at > self._settings.missing_grace_s:
                self._retire(member)
                del self._members[member.worker]

    async def _retire_stalled(self, members: Sequence[_Member]) -> None:
        for member in members:
            self._retire(member)
        for batch in _batches(members, self._settings.registration_batch):
            registrations = await self._reader.registrations([member.worker for member in batch])
            for member, registration in zip(batch, registrations, strict=True):
                if registration is None and member.load is not None:
                    await self._reader.forget(member.worker, member.load.epoch)

    def _retire(self, member: _Member) -> None:
        if member.slot is not None:
            self._drop_fence(member)
            self._view.retire(member.slot)
            _log.info("worker_retired", worker=member.worker)
        member.slot = member.known = None

    def _drop_fence(self, member: _Member) -> None:
        self._fences.pop(_epoch(member), None)

    def _heed_hash(self, hash_id: str | None) -> None:
        agrees = hash_id in (None, HASH_ID)
        if agrees == self._hash_agrees:
            return
        self._hash_agrees = agrees
        if agrees:
            _log.info("hash_agrees", hash=HASH_ID)
            return
        _log.error("hash_differs", agents=hash_id, ours=HASH_ID, consequence="no worker gets credit for its cache")
        self._doubt_all(self._fences.values())

    # What they hold.

    async def _keep_tailing(self) -> None:
        self._is_caught_up = False
        await self._polled.wait()
        # Load records of before the catching up: what they count is in the stream by now, or lost.
        loads = list(self._fenced(self._members.values()))
        await self._find_cursor()
        while not self._is_caught_up:
            await self._take_page(block_s=0.0)
        self._note_up("events")
        self._audit(loads, self._watch.now, patience_s=0.0)
        await self._reload(self._due_fences())
        self.synced.set()
        while True:
            await self._take_page(self._settings.poll_s)
            await self._reload(self._due_fences())

    async def _take_page(self, block_s: float) -> None:
        entries = await self._wait_events(block_s)
        for entry in entries:
            self._apply(entry, self._fences)
            self._cursor = entry.id
            await self._let_go(entry)
        self._is_caught_up = len(entries) < self._settings.page_entries

    async def _wait_events(self, block_s: float) -> list[Entry]:
        assert self._cursor is not None
        try:
            return await self._reader.wait_events(self._cursor, self._settings.page_entries, block_s)
        except Foreign:
            self.foreign += 1
            await asyncio.sleep(self._settings.poll_s)
            return []

    def _apply(self, entry: Entry, fences: dict[int, Fence]) -> None:
        event = entry.event
        if event is None:
            self.foreign += 1
            return
        fence = fences.get(event.epoch)
        if fence is None or not self._is_current(fence):
            return
        arrival = fence.offer(event.seq)
        if arrival is Arrival.APPLY:
            self._entries += 1
            self._mirror(event, fence.slot)
        elif arrival is Arrival.GAP:
            self._doubt(fence)

    def _mirror(self, event: KvEvent, slot: int) -> None:
        index, inflight = self._view.index, self._view.inflight
        if event.op is KvOp.REMOVE:
            index.remove(slot, event.blocks)
        elif event.op is KvOp.CLEAR:
            index.clear(slot)
        else:
            index.store(slot, event.blocks)
            if inflight.awaited:
                now = time.monotonic()
                for block in event.blocks:
                    inflight.announced(slot, block, now)

    def _audit(self, loads: Iterable[tuple[Fence, LoadRecord]], now: float, patience_s: float | None) -> None:
        for fence, load in loads:
            said, held = (load.kv_count, load.kv_xor), self._view.index.digest(fence.slot)
            if not fence.is_dirty and not fence.agrees(load.kv_seq, said, held, now, patience_s):
                self._doubt(fence)

    def _doubt(self, fence: Fence) -> None:
        fence.lose()
        if self._is_current(fence):
            self._view.index.trust(fence.slot, False)

    def _doubt_all(self, fences: Iterable[Fence]) -> None:
        for fence in fences:
            self._doubt(fence)

    def _due_fences(self) -> list[Fence]:
        if not self._hash_agrees:
            return []
        return [fence for fence in self._fences.values() if fence.is_dirty and fence.retry_at <= self._watch.now]

    async def _reload(self, fences: Sequence[Fence]) -> None:
        if fences:
            await self._find_cursor()
        for batch in _batches(fences, self._settings.reload_workers):
            current = [fence for fence in batch if self._is_current(fence)]
            try:
                await self._reload_batch(current)
            except Foreign:
                self.foreign += 1
                self._doubt_all(current)
            except BaseException:
                # Restored in part, they would be neither trusted nor reloaded.
                self._doubt_all(current)
                raise

    async def _reload_batch(self, fences: Sequence[Fence]) -> None:
        for fence in fences:
            fence.attempt(self._watch.now)
        restored: dict[int, Fence] = {}
        starts: list[StreamId] = []
        holdings = await self._reader.holdings([(fence.worker, fence.epoch) for fence in fences])
        for fence, holding in zip(fences, holdings, strict=True):
            snapshot = holding.snapshot
            if isinstance(snapshot, Foreign):
                self.foreign += 1
            elif snapshot is not None and await self._restore(fence, snapshot):
                restored[fence.epoch] = fence
                # A snapshot that is up to date spares a reading of the stream since it was made, hours perhaps.
                if holding.kv_seq > snapshot.seq:
                    starts.append(snapshot.stream_id)
        if starts:
            await self._replay(min(starts), restored)
        await self._conclude(fences)

    async def _restore(self, fence: Fence, snapshot: Snapshot) -> bool:
        """Makes a slot hold what the snapshot says, in slices; False if its worker went away meanwhile."""
        index, size = self._view.index, self._settings.slice_blocks
        if snapshot.epoch != fence.epoch or not self._is_current(fence):
            return False
        index.trust(fence.slot, False)
        while not index.forget(fence.slot, size):
            await asyncio.sleep(0)
            if not self._is_current(fence):
                return False
        for part in _batches(snapshot.blocks, size):
            index.store(fence.slot, part)
            await asyncio.sleep(0)
            if not self._is_current(fence):
                return False
        fence.restart(snapshot.seq)
        return True

    async def _replay(self, start: StreamId, fences: dict[int, Fence]) -> None:
        """Applies what the stream has for these fences between a snapshot and the cursor."""
        limit = self._settings.page_entries
        while self._cursor is not None and start < self._cursor:
            entries = await self._reader.events(start, self._cursor, limit)
            for entry in entries:
                self._apply(entry, fences)
                await self._let_go(entry)
            if len(entries) < limit:
                return
            start = entries[-1].id

    async def _conclude(self, fences: Iterable[Fence]) -> None:
        wanted = []
        for fence in filter(self._is_current, fences):
            if fence.is_dirty:
                wanted.append(fence.epoch)
            elif self._hash_agrees:
                self._reloads += 1
                self._view.index.trust(fence.slot, True)
        if wanted:
            await self._reader.want(wanted)

    async def _let_go(self, entry: Entry) -> None:
        """Lets other tasks run once enough has been done since the last time."""
        self._slice += _ENTRY_COST + (len(entry.event.blocks) if entry.event else 0)
        if self._slice >= self._settings.slice_blocks:
            self._slice = 0
            await asyncio.sleep(0)

    # Bookkeeping.

    def _is_current(self, fence: Fence) -> bool:
        return self._fences.get(fence.epoch) is fence

    def _fenced(self, members: Iterable[_Member]) -> Iterator[tuple[Fence, LoadRecord]]:
        for member in members:
            fence = self._fences.get(member.load.epoch) if member.load else None
            if fence is not None and member.load is not None and fence.worker == member.worker:
                yield fence, member.load

    def _note_up(self, name: str) -> None:
        self._backoffs[name].reset()
        self._down.discard(name)
        if not self._down and not self.connected:
            self.connected, self._is_down_logged = True, False
            self._view.is_live = True
            _log.info("redis_up", workers=len(self._members))

    def _note_down(self, name: str, error: BaseException) -> None:
        self._down.add(name)
        self._polled.clear()
        self.connected = self._view.is_live = False
        if not self._is_down_logged:
            self._is_down_logged = True
            _log.warning("redis_down", at=name, reason=reason(error), consequence="the view stays as it is")


def _with_canonical_endpoint(record: WorkerRecord) -> WorkerRecord | None:
    endpoint = canonical(record.endpoint)
    if endpoint is None or not endpoint.rpartition(":")[2].isdecimal():
        return None
    return msgspec.structs.replace(record, endpoint=endpoint)


def _epoch(member: _Member) -> int:
    return member.known[0] if member.known else -1


def _batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]
