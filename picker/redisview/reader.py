"""The commands of a picker: typed answers, no policy.

A value that no agent wrote, or a key of another type, comes back as (or raises) `Foreign`. Everything else that goes
wrong raises one of `connection.FAILURES`. No command takes longer than the deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from picker.redisview.connection import bounded
from picker.redisview.keys import Keys
from picker.redisview.records import Foreign, KvEvent, LoadRecord, Snapshot, StreamId, WorkerRecord

WANT_TTL_S = 5.0
"""A request for a snapshot is forgotten after so long; whoever still needs one asks again."""
_SNAPSHOT_HEADER_BYTES = len(Snapshot(0, 0, (0, 0), ()).pack())
_BLOCK_BYTES = 8


class Registration(NamedTuple):
    """A worker's HASH: its record, and the number that grows with each change of it."""

    record: WorkerRecord
    facts: int


class Entry(NamedTuple):
    """One entry of the event stream; `event` is None where no agent wrote it."""

    id: StreamId
    event: KvEvent | None


@dataclass(frozen=True, slots=True)
class Loads:
    """Of the load HASH: packed load records by worker id. `hash_id` is what agents hash with, None if none came yet.

    Records stay packed because most have not changed since the last time, and comparing bytes is cheap. `fields`: how
    many the HASH has. `cursor`: where the next page begins; 0 after the last one, and where the HASH was read whole.
    """

    packed: dict[str, bytes]
    hash_id: str | Foreign | None
    fields: int
    cursor: int


class Holding(NamedTuple):
    """What is written of one worker's blocks: its load record's `kv_seq` (0 if it has none), and its snapshot's size.

    The snapshot is read after this. The agent writes events and load record in one transaction. So if `kv_seq` is not
    above the snapshot's own number, then whatever the snapshot lacks was added to the stream after this was read.
    """

    kv_seq: int
    snapshot_bytes: int | Foreign


class Reader:
    """Reads one pool. `deadline_s` bounds each command; a snapshot of more than `max_snapshot_blocks` is Foreign."""

    def __init__(self, client: Redis, keys: Keys, deadline_s: float = 1.0, max_snapshot_blocks: int = 1_000_000):
        self._client = client
        self._keys = keys
        self._deadline_s = deadline_s
        self._max_snapshot_bytes = _SNAPSHOT_HEADER_BYTES + max_snapshot_blocks * _BLOCK_BYTES

    async def fields(self) -> int:
        """How many fields the load HASH has. Raises Foreign."""
        (reply,) = await self._pipeline(["HLEN", self._keys.load])
        fields: int = _checked(reply)
        return fields

    async def loads(self) -> Loads:
        """All load records. Raises Foreign."""
        loads, *rest = await self._pipeline(["HGETALL", self._keys.load], *self._beside_loads())
        return _loads(_checked(loads), 0, *rest)

    async def some_loads(self, workers: Sequence[str], cursor: int, count: int) -> Loads:
        """The load records of these workers, and a page of about `count` others. Raises Foreign."""
        page, *rest = await self._pipeline(
            ["HSCAN", self._keys.load, cursor, "COUNT", count],
            *self._beside_loads(),
            *([["HMGET", self._keys.load, *workers]] if workers else []),
        )
        next_cursor, packed = _checked(page)
        loads = _loads(packed, int(next_cursor), *rest[:2])
        if workers:
            known = zip(workers, _checked(rest[2]), strict=True)
            loads.packed.update((worker, data) for worker, data in known if data is not None)
        return loads

    def _beside_loads(self) -> tuple[list[str], list[str]]:
        return ["HLEN", self._keys.load], ["HGET", self._keys.meta, "hash"]

    async def registrations(self, workers: Sequence[str]) -> list[Registration | Foreign | None]:
        """What is known of each of these workers; None where the lease is over."""
        replies = await self._pipeline(*(["HMGET", self._keys.worker(worker), "record", "facts"] for worker in workers))
        return [_registration(worker, reply) for worker, reply in zip(workers, replies, strict=True)]

    async def last_event_id(self) -> StreamId:
        """The id of the newest event; (0, 0) if there is none. Raises Foreign."""
        (reply,) = await self._pipeline(["XREVRANGE", self._keys.events, "+", "-", "COUNT", 1])
        entries = _checked(reply)
        return parse_id(entries[0][0]) if entries else (0, 0)

    async def wait_events(self, after: StreamId, count: int, block_s: float) -> list[Entry]:
        """Up to `count` events after this id; waits up to `block_s` seconds for the first. Raises Foreign."""
        (reply,) = await self._pipeline(
            ["XREAD", "COUNT", count, "BLOCK", max(1, round(block_s * 1000)), "STREAMS", self._keys.events, _id(after)]
        )
        streams = _checked(reply)
        return [_entry(*entry) for entry in streams[0][1]] if streams else []

    async def events(self, after: StreamId, until: StreamId, count: int) -> list[Entry]:
        """Up to `count` events after the first id, up to and including the second. Raises Foreign."""
        (reply,) = await self._pipeline(["XRANGE", self._keys.events, f"({_id(after)}", _id(until), "COUNT", count])
        return [_entry(*entry) for entry in _checked(reply)]

    async def holdings(self, workers: Sequence[tuple[str, int]]) -> list[Holding]:
        """What is written of the blocks of these (worker, epoch). Raises Foreign if the load HASH is something else."""
        loads, *sizes = await self._pipeline(
            ["HMGET", self._keys.load, *(worker for worker, _ in workers)],
            *(["STRLEN", self._keys.snapshot(epoch)] for _, epoch in workers),
        )
        return [
            Holding(_kv_seq(load, epoch), self._allowed(size))
            for load, size, (_, epoch) in zip(_checked(loads), sizes, workers, strict=True)
        ]

    async def snapshot(self, epoch: int) -> Snapshot | None:
        """The snapshot of this epoch. Raises Foreign."""
        # GETRANGE, since it may have grown after its size was read.
        (reply,) = await self._pipeline(["GETRANGE", self._keys.snapshot(epoch), 0, self._max_snapshot_bytes])
        data = _checked(reply)
        return Snapshot.unpack(data) if data else None

    async def want(self, epochs: Sequence[int]) -> None:
        """Asks the agents of these epochs for new snapshots; a replica that refuses to be written to is not asked."""
        ttl_ms = round(WANT_TTL_S * 1000)
        await self._pipeline(*(["SET", self._keys.wanted(epoch), "1", "PX", ttl_ms] for epoch in epochs))

    async def forget(self, workers: Sequence[tuple[str, int]]) -> None:
        """Removes what dead workers left behind, unless this is a replica that refuses to be written to."""
        await self._pipeline(
            *(["HDEL", self._keys.load, worker] for worker, _ in workers),
            *(["DEL", self._keys.snapshot(epoch)] for _, epoch in workers),
        )

    def _allowed(self, reply: Any) -> int | Foreign:
        try:
            size: int = _checked(reply)
        except Foreign as foreign:
            return foreign
        return size if size <= self._max_snapshot_bytes else Foreign(f"snapshot of {size} bytes")

    async def _pipeline(self, *commands: Sequence[Any]) -> list[Any]:
        # Errors come back among the replies: one key of a wrong type must not hide what the others hold.
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        async with bounded(self._deadline_s):
            return await pipeline.execute(raise_on_error=False)


def parse_id(data: bytes) -> StreamId:
    """`b"1700000000000-3"` as two numbers."""
    milliseconds, _, number = data.partition(b"-")
    return int(milliseconds), int(number)


def _id(stream_id: StreamId) -> str:
    return f"{stream_id[0]}-{stream_id[1]}"


def _checked(reply: Any) -> Any:
    if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
        raise Foreign("a key of ours holds a value of another type")
    if isinstance(reply, Exception):
        raise reply
    return reply


def _registration(worker: str, reply: Any) -> Registration | Foreign | None:
    try:
        record, facts = _checked(reply)
        if record is None:
            return None
        registration = Registration(WorkerRecord.unpack(record), int(facts or 0))
    except Foreign as foreign:
        return foreign
    except ValueError:
        return Foreign("worker HASH whose `facts` is not a number")
    if registration.record.worker != worker:
        return Foreign("worker HASH with another worker's record")
    return registration


def _entry(entry_id: bytes, fields: dict[bytes, bytes] | None) -> Entry:
    try:
        event = KvEvent.unpack((fields or {}).get(b"e", b""))
    except Foreign:
        event = None
    return Entry(parse_id(entry_id), event)


def _kv_seq(data: bytes | None, epoch: int) -> int:
    try:
        load = LoadRecord.unpack(data or b"")
    except Foreign:
        return 0
    return load.kv_seq if load.epoch == epoch else 0


def _loads(packed: dict[bytes, bytes], cursor: int, fields: Any, hash_id: Any) -> Loads:
    decoded = {worker.decode("utf-8", "replace"): data for worker, data in packed.items()}
    return Loads(decoded, _hash_id(hash_id), _checked(fields), cursor)


def _hash_id(reply: Any) -> str | Foreign | None:
    try:
        data: bytes | None = _checked(reply)
    except Foreign as foreign:
        return foreign
    return None if data is None else data.decode("utf-8", "replace")
