"""The commands of an agent: one transaction carries whatever is to be written of a worker.

Events and load record go together, so that whoever reads a load record finds all events up to its `kv_seq` in the
stream, and nothing of a transaction is half written when Redis refuses or the connection breaks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from picker.redisview.connection import bounded
from picker.redisview.keys import Keys
from picker.redisview.reader import parse_id
from picker.redisview.records import KvEvent, LoadRecord, Snapshot, StreamId, WorkerRecord


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """Bounds. `stream_entries`: about so many events are kept, at most 1 KB each; keep two snapshot periods' worth."""

    lease_s: float = 5.0
    snapshot_ttl_s: float = 600.0
    stream_entries: int = 100_000
    deadline_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Update:
    """What is to be written of one worker; `record`, `events` and `snapshot` only if there is something new.

    `renews`: whether to extend the lease and to ask how things stand; for a second or so this can be left out.
    `ended`: the epoch before this one, whose snapshot is of no use any more.
    """

    worker: str
    load: LoadRecord
    record: WorkerRecord | None = None
    events: Sequence[KvEvent] = ()
    snapshot: Snapshot | None = None
    renews: bool = True
    ended: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """How things stood when the lease was extended. `owner`, `facts`: of the worker's HASH, None where it is gone."""

    owner: int | None
    facts: int | None
    is_snapshot_wanted: bool
    has_snapshot: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """What came of an update: the id of its last event, and the lease if it was renewed."""

    last_event: StreamId | None
    lease: Lease | None


class Writer:
    """Writes to one pool. `hash_id` names what the blocks are hashed with; it is set where none is set yet."""

    def __init__(self, client: Redis, keys: Keys, hash_id: str, settings: WriterSettings = WriterSettings()):
        self._client = client
        self._keys = keys
        self._hash_id = hash_id
        self._settings = settings

    async def owner(self, worker: str) -> int | None:
        """The epoch under which this worker is registered; None where the lease is over."""
        return _number(await self._ask("HGET", self._keys.worker(worker), "epoch"))

    async def last_event_id(self) -> StreamId:
        """The id of the newest event of the pool; (0, 0) if there is none."""
        entries = await self._ask("XREVRANGE", self._keys.events, "+", "-", "COUNT", 1)
        return parse_id(entries[0][0]) if entries else (0, 0)

    async def write(self, update: Update) -> Receipt:
        """All of an update, or nothing of it."""
        pipeline = self._client.pipeline(transaction=True)
        for event in update.events:
            self._add_event(pipeline, event)
        if update.record is not None:
            self._add_record(pipeline, update.record, update.load.facts)
        if update.ended is not None:
            # An agent may not delete.
            pipeline.execute_command("PEXPIRE", self._keys.snapshot(update.ended), 0)
        if update.snapshot is not None:
            key, ttl_ms = self._keys.snapshot(update.load.epoch), _ms(self._settings.snapshot_ttl_s)
            pipeline.execute_command("SET", key, update.snapshot.pack(), "PX", ttl_ms)
        pipeline.execute_command("HSET", self._keys.load, update.worker, update.load.pack())
        if update.renews:
            self._add_renewal(pipeline, update)
        async with bounded(self._settings.deadline_s):
            replies = await pipeline.execute()
        last_event = parse_id(replies[len(update.events) - 1]) if update.events else None
        return Receipt(last_event, _lease(*replies[-4:]) if update.renews else None)

    async def _ask(self, *command: str | int) -> Any:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.execute_command(*command)
        async with bounded(self._settings.deadline_s):
            return (await pipeline.execute())[0]

    def _add_event(self, pipeline: Pipeline, event: KvEvent) -> None:
        limit = self._settings.stream_entries
        pipeline.execute_command("XADD", self._keys.events, "MAXLEN", "~", limit, "*", "e", event.pack())

    def _add_record(self, pipeline: Pipeline, record: WorkerRecord, facts: int) -> None:
        fields = ("record", record.pack(), "epoch", record.epoch, "facts", facts)
        pipeline.execute_command("HSET", self._keys.worker(record.worker), *fields)

    def _add_renewal(self, pipeline: Pipeline, update: Update) -> None:
        worker, snapshot = self._keys.worker(update.worker), self._keys.snapshot(update.load.epoch)
        # Goes when the last agent that hashes like this has gone.
        pipeline.execute_command("HSETNX", self._keys.meta, "hash", self._hash_id)
        pipeline.execute_command("PEXPIRE", self._keys.meta, _ms(self._settings.snapshot_ttl_s))
        pipeline.execute_command("HMGET", worker, "epoch", "facts")
        pipeline.execute_command("PEXPIRE", worker, _ms(self._settings.lease_s))
        pipeline.execute_command("GETDEL", self._keys.wanted(update.load.epoch))
        pipeline.execute_command("PEXPIRE", snapshot, _ms(self._settings.snapshot_ttl_s))


def _lease(holder: list[bytes | None], _: bool, wanted: bytes | None, has_snapshot: bool) -> Lease:
    owner, facts = holder
    return Lease(_number(owner), _number(facts), wanted is not None, has_snapshot)


def _number(data: bytes | None) -> int | None:
    # Anything else than a number is not an agent's: as good as gone, it will be written over.
    return int(data) if data is not None and data.isdigit() else None


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
