"""What agents write and pickers read: four records and their bytes.

Loads, KV events and snapshots are packed little-endian; worker facts, which are few and change rarely, are JSON. A
record that does not decode raises `Foreign`: the reader counts it and goes on, since a shared Redis can hold anything.
"""

from __future__ import annotations

import enum
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import numpy as np
import numpy.typing as npt

StreamId = tuple[int, int]
"""Id of a stream entry: milliseconds by Redis' clock, number within them. Ids compare as tuples do."""


class Foreign(ValueError):
    """Bytes under one of our keys that no agent of this schema wrote."""


class WorkerState(enum.StrEnum):
    """Whether a worker may be picked. Only READY ones are."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts of one worker, which change rarely.

    `worker` is `endpoint` with the rank appended when there are several ranks behind one endpoint. `epoch` is a random
    63-bit number drawn whenever the worker's cache may have begun anew (start of the agent, restart of the engine): it
    needs no allocator, so an emptied Redis cannot hand the same number out twice.

    `adapters` are those that may be asked for; of them, `resident_adapters` are taken to be on the GPU, where
    `adapter_slots` have room (0: unknown). `gpu` is the operator's name for its kind. `tokenizer` is the digest under
    which the model's tokenizer files are offered (`redisview.tokenizers`), "" where they are not.
    """

    worker: str
    epoch: int
    endpoint: str
    rank: int = 0
    state: WorkerState = WorkerState.LOADING
    engine: str = ""
    version: str = ""
    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    resident_adapters: tuple[str, ...] = ()
    adapter_slots: int = 0
    gpu: str = ""
    kv_capacity_tokens: int = 0
    context_limit_tokens: int = 0
    publishes_kv: bool = True
    tokenizer: str = ""
    labels: dict[str, str] = {}

    def pack(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def unpack(cls, data: bytes) -> WorkerRecord:
        """Raises Foreign."""
        try:
            return msgspec.json.decode(data, type=cls)
        # A text that is not UTF-8 or nests too deep raises the other two.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Foreign(f"worker record: {error}") from None


_LOAD = struct.Struct("<BQIIHHQfffQIQQQQQQQ")
_U16, _U32 = 0xFFFF, 0xFFFFFFFF
_LARGEST_COUNT = 2**63 - 1
"""Of tokens: what the arrays of a view can hold."""
_LARGEST_RATE = 1e12


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """How busy a worker is, and a digest of what it has published. Written on change and at least once a second.

    `beat` grows with every write: a picker that sees it stand still on its own clock calls the worker stale, so no two
    machines' clocks are ever compared. `facts` grows when the worker's record changes. `kv_used` is a share, 0 to 1.
    `kv_count` and `kv_xor` are the number and the exclusive-or of the published index blocks after event `kv_seq`.

    The last six are the engine's own counters since it started, 0 where it has none: tokens looked up in its prefix
    cache and tokens found there, tokens generated, requests finished, first tokens given, requests failed.
    """

    epoch: int
    beat: int
    facts: int
    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    kv_used: float = 0.0
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0
    kv_seq: int = 0
    kv_count: int = 0
    kv_xor: int = 0
    looked_up_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    first_tokens: int = 0
    errors: int = 0

    def pack(self) -> bytes:
        """109 bytes, the first of which is the record's version. Numbers that do not fit become the nearest that do."""
        return _LOAD.pack(
            1,
            self.epoch,
            self.beat & _U32,
            self.facts & _U32,
            _clamped(self.running, _U16),
            _clamped(self.waiting, _U16),
            _clamped(self.waiting_tokens, _LARGEST_COUNT),
            _measured(self.kv_used),
            _measured(self.prefill_tokens_per_s),
            _measured(self.decode_tokens_per_s),
            self.kv_seq,
            self.kv_count,
            self.kv_xor,
            *(_clamped(count, _LARGEST_COUNT) for count in self._counted),
        )

    @classmethod
    def unpack(cls, data: bytes) -> LoadRecord:
        """Raises Foreign."""
        if len(data) != _LOAD.size or data[0] != 1:
            raise Foreign(f"load record of {len(data)} bytes")
        load = cls(*_LOAD.unpack(data)[1:])
        if not all(
            0 <= value < math.inf for value in (load.kv_used, load.prefill_tokens_per_s, load.decode_tokens_per_s)
        ):
            raise Foreign("load record with a share or rate that is no finite number")
        if max(load.waiting_tokens, *load._counted) > _LARGEST_COUNT:
            raise Foreign("load record with more tokens than there can be")
        return load

    @property
    def _counted(self) -> tuple[int, ...]:
        return (
            self.looked_up_tokens,
            self.reused_tokens,
            self.generated_tokens,
            self.finished,
            self.first_tokens,
            self.errors,
        )


def _clamped(value: int, largest: int) -> int:
    return min(max(value, 0), largest)


def _measured(value: float) -> float:
    # An engine's gauge may be NaN or infinite before its first measurement.
    return min(value, _LARGEST_RATE) if value >= 0 else 0.0


class KvOp(enum.IntEnum):
    """What happened to index blocks on a worker."""

    STORE = 1
    REMOVE = 2
    CLEAR = 3


_EVENT = struct.Struct("<BBQQ")
MAX_EVENT_BLOCKS = 128
"""Index blocks in one event: bounds the time that applying one entry can take."""


@dataclass(frozen=True, slots=True)
class KvEvent:
    """One entry of the event stream. `seq` counts an epoch's events from 1 without a gap."""

    epoch: int
    seq: int
    op: KvOp
    blocks: tuple[int, ...] = ()

    def pack(self) -> bytes:
        """18 bytes and 8 for each block."""
        return _EVENT.pack(1, self.op, self.epoch, self.seq) + pack_blocks(self.blocks)

    @classmethod
    def unpack(cls, data: bytes) -> KvEvent:
        """Raises Foreign."""
        size = len(data) - _EVENT.size
        if size < 0 or size % 8 or size > MAX_EVENT_BLOCKS * 8 or data[0] != 1 or data[1] not in (1, 2, 3):
            raise Foreign(f"KV event of {len(data)} bytes")
        _, op, epoch, seq = _EVENT.unpack_from(data)
        return cls(epoch, seq, KvOp(op), tuple(unpack_blocks(data[_EVENT.size :])))


class PackedBlocks(Sequence[int]):
    """64-bit hashes in an array; a slice of them is a list of integers."""

    def __init__(self, array: npt.NDArray[np.uint64]):
        self._array = array

    def __repr__(self) -> str:
        return f"<PackedBlocks {len(self)}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        found: int | list[int] = self._array[at].tolist()
        return found


_SNAPSHOT = struct.Struct("<BQQQQIQ")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All index blocks that a worker holds after event `seq`. Later events stand in the stream after `stream_id`.

    Those of one that was read are not made integers of at once, which would take long for a million of them.
    """

    epoch: int
    seq: int
    stream_id: StreamId
    blocks: Sequence[int]

    def pack(self) -> bytes:
        """45 bytes and 8 for each block; the digest (count, xor) is part of the header."""
        ms, n = self.stream_id
        header = _SNAPSHOT.pack(1, self.epoch, self.seq, ms, n, len(self.blocks), xor_of(self.blocks))
        return header + pack_blocks(self.blocks)

    @classmethod
    def unpack(cls, data: bytes) -> Snapshot:
        """Raises Foreign, also where the digest does not fit the blocks."""
        if len(data) < _SNAPSHOT.size or data[0] != 1:
            raise Foreign(f"snapshot of {len(data)} bytes")
        _, epoch, seq, ms, n, count, xor = _SNAPSHOT.unpack_from(data)
        if len(data) != _SNAPSHOT.size + 8 * count:
            raise Foreign(f"snapshot of {len(data)} bytes for {count} blocks")
        blocks = np.frombuffer(data, dtype="<u8", offset=_SNAPSHOT.size)
        if int(np.bitwise_xor.reduce(blocks, initial=0)) != xor:
            raise Foreign("snapshot with a wrong digest")
        return cls(epoch, seq, (ms, n), PackedBlocks(blocks))


def pack_blocks(blocks: Sequence[int]) -> bytes:
    """64-bit hashes as u64le."""
    return np.array(blocks, dtype="<u8").tobytes()


def unpack_blocks(data: bytes) -> list[int]:
    """The inverse of `pack_blocks`."""
    blocks: list[int] = np.frombuffer(data, dtype="<u8").tolist()
    return blocks


def xor_of(blocks: Sequence[int]) -> int:
    """Order-free digest of a set of hashes."""
    return int(np.bitwise_xor.reduce(np.array(blocks, dtype="<u8"), initial=0))
