"""Carries one worker's state to Redis: facts, load and cached prefixes.

The engine's side calls plain methods, which change memory and never wait. `run` writes what has changed, as one
transaction at a time. Three rules make it safe to fail at any point:

- After a write that failed or may have failed, its events are not sent again; a snapshot of everything follows.
- A worker's HASH that is gone (Redis restarted, flushed, evicted, failed over) is written anew, with a snapshot.
- A HASH that shows another epoch belongs to another agent of this worker: nothing is written until it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import structlog
from redis.asyncio import Redis

from picker.agent.outbox import Outbox
from picker.agent.schedule import Schedule
from picker.prompts.chain import HASH_ID
from picker.redisview.advice import advice
from picker.redisview.connection import FAILURES, Backoff, reason
from picker.redisview.keys import Keys
from picker.redisview.records import LoadRecord, StreamId, WorkerRecord, WorkerState
from picker.redisview.writer import Lease, Receipt, Update, Writer, WriterSettings

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class PublisherSettings:
    """When to write, in seconds, and how much to keep while Redis is away.

    `coalesce_s`: KV events wait so long for more (peers: 5 to 20 ms). `load_interval_s`: loads are written no more
    often. `heartbeat_s`: and no less often. `snapshot_interval_s`: how often all blocks are written, if they changed.
    `pending_blocks`: beyond these a snapshot takes the place of events. `farewell_s`: how long the end may take.
    """

    coalesce_s: float = 0.010
    load_interval_s: float = 0.1
    heartbeat_s: float = 1.0
    snapshot_interval_s: float = 30.0
    pending_blocks: int = 65_536
    farewell_s: float = 0.5
    first_retry_s: float = 0.05
    longest_retry_s: float = 2.0
    writer: WriterSettings = field(default_factory=WriterSettings)


class Load(msgspec.Struct, frozen=True):
    """How busy a worker is, in the fields of `records.LoadRecord` that an engine tells.

    `waiting_tokens`: prompt tokens in its queue; `kv_used`: share of its KV cache, 0 to 1. The last six are its own
    counters since it started.
    """

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    kv_used: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    looked_up_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    first_tokens: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class PublisherStatistics:
    """A publisher at one moment. `blocks`: on the worker; `pending_blocks`: changes that are not written yet."""

    seq: int
    blocks: int
    pending_blocks: int
    is_connected: bool
    is_fenced: bool
    failures: int
    snapshots: int


class Publisher:
    """One worker's way to Redis. Begins with `begin`; `run` must run for anything to be written."""

    def __init__(self, client: Redis, keys: Keys, settings: PublisherSettings = PublisherSettings()):
        self._settings = settings
        self._writer = Writer(client, keys, HASH_ID, settings.writer)
        self._backoff = Backoff(random.Random(), settings.first_retry_s, settings.longest_retry_s)
        self._changed = asyncio.Event()
        self._record: WorkerRecord | None = None
        self._ended: int | None = None
        self._outbox = Outbox(0, settings.pending_blocks)
        self._load = Load()
        self._facts = 0
        self._beat = 0
        self._needs_record = False
        self._is_fenced = False
        self._is_relieved = False
        self._schedule = Schedule(
            coalesce_s=settings.coalesce_s,
            load_interval_s=settings.load_interval_s,
            heartbeat_s=settings.heartbeat_s,
            snapshot_interval_s=settings.snapshot_interval_s,
        )
        self._position: StreamId | None = None
        self._is_connected: bool | None = None
        self._failures = 0
        self._snapshots = 0

    def __repr__(self) -> str:
        return f"<Publisher of {self._worker}, {self._outbox!r}>"

    # What the engine's side tells. None of it waits.

    def begin(self, record: WorkerRecord) -> None:
        """A new epoch: the cache is empty, and this agent is the one that speaks for the worker."""
        # An engine that starts again and again must not fill Redis with what it held before.
        if self._record is not None and not self._needs_record:
            self._ended = self._record.epoch
        self._record = record
        self._outbox = Outbox(record.epoch, self._settings.pending_blocks)
        self._load = Load()
        self._facts += 1
        self._needs_record = True
        self._is_fenced = False
        self._schedule.drop_events()
        self._write_soon()

    def facts(self, record: WorkerRecord) -> None:
        """The same epoch with other facts. Raises ValueError for another worker or epoch: that is `begin`'s."""
        known = self._record
        if known is None or (known.worker, known.epoch) != (record.worker, record.epoch):
            raise ValueError(
                f"facts of {record.worker}, epoch {record.epoch:x}, which has not begun: call begin() first"
            )
        if record != known:
            self._record = record
            self._facts += 1
            self._write_soon()

    def load(self, load: Load) -> None:
        """The worker's load as of now."""
        if load != self._load:
            self._load = load
            self._schedule.note_load()
            self._changed.set()

    def stored(self, blocks: Iterable[int]) -> None:
        """Index blocks that are cached now, parents first."""
        self._outbox.store(blocks)
        self._note_pending()

    def removed(self, blocks: Iterable[int]) -> None:
        """Index blocks that are not cached any more, children first."""
        self._outbox.remove(blocks)
        self._note_pending()

    def cleared(self) -> None:
        """Nothing is cached any more."""
        self._outbox.clear()
        self._note_pending()

    def relieve(self) -> None:
        """The worker goes on when this ends: another agent is expected, and nothing is said at the end."""
        self._is_relieved = True

    def statistics(self) -> PublisherStatistics:
        """Named numbers for metrics and tests."""
        return PublisherStatistics(
            seq=self._outbox.seq,
            blocks=len(self._outbox),
            pending_blocks=self._outbox.pending_blocks,
            is_connected=bool(self._is_connected),
            is_fenced=self._is_fenced,
            failures=self._failures,
            snapshots=self._snapshots,
        )

    # The way to Redis.

    async def run(self) -> None:
        """Writes until cancelled, and then says, if that can be done quickly, that the worker is draining.

        Not after `relieve`.
        """
        try:
            while True:
                await self._wait_due()
                await self._try_write()
        except asyncio.CancelledError:
            await self._say_farewell()
            raise

    async def _wait_due(self) -> None:
        while (delay := self._due() - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if delay == math.inf else delay):
                    await self._changed.wait()

    def _due(self) -> float:
        """When the next write is due. In the past if it is due now; infinite if there is nothing to tell."""
        if self._record is None:
            return math.inf
        if self._is_fenced:
            return self._schedule.heartbeat_at
        if self._needs_record or self._outbox.needs_snapshot:
            return -math.inf
        return self._schedule.next_at

    async def _try_write(self) -> None:
        try:
            await (self._probe() if self._is_fenced else self._write())
        except FAILURES as error:
            self._note_failure(error)
            await asyncio.sleep(self._backoff.next())
        else:
            self._backoff.reset()
            self._note_connected()

    async def _write(self) -> None:
        outbox = self._outbox
        if outbox.needs_snapshot and self._position is None:
            self._position = await self._writer.last_event_id()
        if self._outbox is not outbox:
            return
        update = self._compose(time.monotonic())
        receipt = await self._writer.write(update)
        # A new epoch may have begun meanwhile; it starts from nothing.
        if self._outbox is outbox:
            self._take(update, receipt)
        else:
            self._ended = outbox.epoch

    def _compose(self, now: float) -> Update:
        assert self._record is not None
        events = self._outbox.draw()
        update = Update(
            worker=self._record.worker,
            # Drawing comes first: the digest must be that of the last event drawn.
            load=self._load_record(),
            record=self._record if self._needs_record else None,
            events=events,
            snapshot=self._outbox.snapshot(self._position or (0, 0)) if self._is_snapshot_due(now) else None,
            ended=self._ended,
            renews=self._needs_record or self._schedule.renews(now),
        )
        self._schedule.note_written(now, renews=update.renews, has_snapshot=update.snapshot is not None)
        return update

    def _load_record(self) -> LoadRecord:
        self._beat += 1
        return LoadRecord(
            epoch=self._outbox.epoch,
            beat=self._beat,
            facts=self._facts,
            kv_seq=self._outbox.seq,
            kv_count=len(self._outbox),
            kv_xor=self._outbox.xor,
            **msgspec.structs.asdict(self._load),
        )

    def _is_snapshot_due(self, now: float) -> bool:
        outbox = self._outbox
        return outbox.needs_snapshot or (outbox.has_changed and self._schedule.is_snapshot_old(now))

    def _take(self, update: Update, receipt: Receipt) -> None:
        self._position = receipt.last_event or self._position
        self._snapshots += update.snapshot is not None
        if update.record is not None:
            self._needs_record, self._ended = False, None
        if receipt.lease is not None:
            self._heed(receipt.lease)

    def _heed(self, lease: Lease) -> None:
        if lease.owner is None:
            self._register_anew()
        elif lease.owner != self._outbox.epoch:
            self._is_fenced = True
            _log.warning("worker_taken_over", worker=self._worker, owner=f"{lease.owner:016x}")
        elif lease.facts != self._facts:
            # New facts, or old ones that a write thought lost has put back.
            self._needs_record = True
        if lease.is_snapshot_wanted or not lease.has_snapshot:
            self._outbox.doubt()

    def _register_anew(self) -> None:
        self._needs_record = True
        # Redis may have lost the stream too, and its ids may begin anew.
        self._position = None
        self._outbox.doubt()

    async def _probe(self) -> None:
        assert self._record is not None
        self._schedule.note_renewed(time.monotonic())
        outbox = self._outbox
        owner = await self._writer.owner(self._record.worker)
        if self._outbox is outbox and owner in (None, outbox.epoch):
            self._is_fenced = False
            self._register_anew()
            _log.info("worker_taken_back", worker=self._worker)

    async def _say_farewell(self) -> None:
        if self._record is None or self._is_fenced or self._is_relieved:
            return
        self._record = msgspec.structs.replace(self._record, state=WorkerState.DRAINING)
        self._facts += 1
        self._needs_record = True
        with contextlib.suppress(*FAILURES):
            async with asyncio.timeout(self._settings.farewell_s):
                # The next agent of this worker may be here already; its record must not be written over.
                if await self._writer.owner(self._record.worker) == self._record.epoch:
                    await self._writer.write(self._compose(time.monotonic()))

    # Bookkeeping.

    @property
    def _worker(self) -> str | None:
        return self._record.worker if self._record else None

    def _write_soon(self) -> None:
        self._schedule.renew_at_once()
        self._changed.set()

    def _note_pending(self) -> None:
        if self._outbox.needs_snapshot:
            self._changed.set()
        if self._outbox.has_pending and self._schedule.note_events(time.monotonic()):
            self._changed.set()

    def _note_failure(self, error: BaseException) -> None:
        self._failures += 1
        self._position = None
        self._outbox.doubt()
        self._schedule.renew_at_once()
        if self._is_connected is not False:
            self._is_connected = False
            _log.warning("redis_down", worker=self._worker, reason=reason(error), advice=advice(error))

    def _note_connected(self) -> None:
        if self._is_connected is not True:
            self._is_connected = True
            _log.info("redis_up", worker=self._worker)
