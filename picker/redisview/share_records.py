"""What pickers write for one another: sums of what each has in flight, and prefixes that it has placed.

Packed little-endian. Bytes that do not decode raise `Foreign`, as in `picker.redisview.records`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picker.redisview.records import Foreign, pack_blocks, unpack_blocks

_SHARE = struct.Struct("<BQQI")
_VERSION = 1
ROWS = np.dtype(
    [
        ("epoch", "<u8"),
        ("requests", "<u4"),
        ("context_tokens", "<u4"),
        ("prefill_s", "<f4"),
        ("window_s", "<f4"),
        ("token_age_s", "<f4"),
        ("owing_age_s", "<f4"),
    ]
)
"""One worker of a share, 32 bytes: see `picker.fleet.others.Sums`."""
MAX_ROWS = 8192
SHARE_BYTES = _SHARE.size + MAX_ROWS * ROWS.itemsize
"""No share is larger."""
_SECONDS = ("prefill_s", "window_s", "token_age_s", "owing_age_s")
_LARGEST_U32 = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Share:
    """The sums of one picker. `picker`: its random id. `beat` grows with every share that it writes."""

    picker: int
    beat: int
    rows: npt.NDArray[np.void]

    def pack(self) -> bytes:
        """21 bytes and 32 for each worker; of too many workers the first ones."""
        rows = self.rows[:MAX_ROWS]
        return _SHARE.pack(_VERSION, self.picker, self.beat, len(rows)) + rows.tobytes()

    @classmethod
    def unpack(cls, data: bytes) -> Share:
        """Raises Foreign."""
        if not _SHARE.size <= len(data) <= SHARE_BYTES or data[0] != _VERSION:
            raise Foreign(f"share of {len(data)} bytes")
        _, picker, beat, count = _SHARE.unpack_from(data)
        if len(data) != _SHARE.size + count * ROWS.itemsize:
            raise Foreign(f"share of {len(data)} bytes for {count} workers")
        rows = np.frombuffer(data, ROWS, offset=_SHARE.size)
        for name in _SECONDS:
            # NaN is not above zero either.
            if not (np.isfinite(rows[name]) & (rows[name] >= 0)).all():
                raise Foreign("share with a time that is no finite number of seconds")
        return cls(picker, beat, rows)


def rows_of(**columns: npt.NDArray[np.generic]) -> npt.NDArray[np.void]:
    """Rows of a share from its columns; numbers that do not fit become the nearest that do."""
    rows: npt.NDArray[np.void] = np.zeros(len(columns["epoch"]), ROWS)
    for name, column in columns.items():
        rows[name] = column if name == "epoch" else np.clip(column, 0, _LARGEST_U32)
    return rows


@dataclass(frozen=True, slots=True)
class Placed:
    """A prompt that goes to the worker of this epoch: its index blocks, head first.

    `is_awaited`: whether the worker will announce them itself.
    """

    epoch: int
    is_awaited: bool
    blocks: Sequence[int]


_ROUTED = struct.Struct("<BQH")
_PLACED = struct.Struct("<QBH")
MAX_ROUTED_BLOCKS = 2048
"""Index blocks in one entry of the stream of placed prefixes: bounds its size (16 KB) and the time to apply it."""
_MAX_ROUTED_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Routed:
    """What one picker has placed in a moment, in that order."""

    picker: int
    placed: Sequence[Placed]

    def pack(self) -> bytes:
        """11 bytes, 11 for each prompt, and 8 for each block."""
        parts = [_ROUTED.pack(_VERSION, self.picker, len(self.placed))]
        for each in self.placed:
            parts.append(_PLACED.pack(each.epoch, each.is_awaited, len(each.blocks)))
            parts.append(pack_blocks(each.blocks))
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Routed:
        """Raises Foreign."""
        if not _ROUTED.size <= len(data) <= _MAX_ROUTED_BYTES or data[0] != _VERSION:
            raise Foreign(f"placed prefixes of {len(data)} bytes")
        _, picker, count = _ROUTED.unpack_from(data)
        at, placed = _ROUTED.size, []
        for _ in range(count):
            if at + _PLACED.size > len(data):
                raise Foreign("placed prefixes that end too early")
            epoch, is_awaited, blocks = _PLACED.unpack_from(data, at)
            at += _PLACED.size
            if at + 8 * blocks > len(data):
                raise Foreign("placed prefixes that end too early")
            placed.append(Placed(epoch, bool(is_awaited), unpack_blocks(data[at : at + 8 * blocks])))
            at += 8 * blocks
        if at != len(data):
            raise Foreign("placed prefixes of another length than they say")
        return cls(picker, placed)
