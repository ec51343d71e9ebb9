"""KV-cache events as TensorRT-LLM's /kv_cache_events page gives them: JSON to events. Pure.

    [{"event_id": 7, "window_size": 4096, "data": {"type": "stored", ..}, "attention_dp_rank": 0}, ..]

    created    {"num_blocks_per_cache_level"}: the cache is new
    stored     {"parent_hash", "blocks": [{"block_hash", "tokens": [{"token_id", "token_extra_id"}], "cache_level",
               "mm_keys", "cache_salt"}]}
    removed    {"block_hashes"}
    updated    {"block_hash", "cache_level": {"old_value", "new_value"}}: moved to another tier, or of another priority

Ids count up without a gap from the start of the process. Each cache of an attention window has blocks of its own; only
those of the largest window count, which is that of full attention. The last block of a prompt may be short.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from xxhash import xxh3_64_intdigest

from picker.agent.events import Event, Limits, Malformed, Removed, Stored

_MASK = (1 << 64) - 1
_FULL, _SLIDING = "full_attention", "sliding_window"


@dataclass(frozen=True, slots=True)
class Polled:
    """One event of the page, as what it changes: nothing for those that do not concern the GPU's blocks.

    `is_first`: the cache was created with it.
    """

    number: int
    rank: int | None
    events: list[Event]
    is_first: bool = False


class _Token(msgspec.Struct):
    token_id: int | str
    token_extra_id: int = 0


class _Block(msgspec.Struct):
    block_hash: int | str
    tokens: list[_Token]
    cache_level: int = 0
    mm_keys: list[Any] = []
    cache_salt: str | None = None
    lora_id: int | None = None


class _Diff(msgspec.Struct):
    old_value: int
    new_value: int


class _Data(msgspec.Struct):
    type: str
    parent_hash: int | str | None = None
    blocks: list[_Block] = []
    block_hashes: list[int | str] = []
    block_hash: int | str | None = None
    cache_level: _Diff | None = None


class _Event(msgspec.Struct):
    event_id: int
    data: _Data
    window_size: int = 0
    attention_dp_rank: int | None = None


class PolledDecoder:
    """Knows which windows there are, from the events so far."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._largest_window = 0

    def decode(self, page: bytes) -> list[Polled]:
        """Raises Malformed."""
        if len(page) > self._limits.payload_bytes:
            raise Malformed(f"a page of {len(page)} bytes; the limit is {self._limits.payload_bytes}")
        try:
            events = msgspec.json.decode(page, type=list[_Event])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Malformed(f"a page of {len(page)} bytes: {type(error).__name__}: {error}") from None
        self._largest_window = max(self._largest_window, *(event.window_size for event in events), 0)
        return [self._normal(event) for event in events]

    def _normal(self, event: _Event) -> Polled:
        data, group = event.data, event.window_size
        changes: list[Event] = []
        if data.type == "stored":
            changes = list(_stored(data, group, _FULL if group == self._largest_window else _SLIDING))
        elif data.type == "removed":
            changes = [Removed([_number(value) for value in data.block_hashes], None, group)]
        elif data.type == "updated" and data.block_hash is not None and _leaves_gpu(data.cache_level):
            changes = [Removed([_number(data.block_hash)], None, group)]
        return Polled(event.event_id, event.attention_dp_rank, changes, data.type == "created")


def _leaves_gpu(change: _Diff | None) -> bool:
    # One that comes back comes without its tokens, and stays away: less is credited than there is.
    return change is not None and change.old_value == 0 != change.new_value


def _stored(data: _Data, group: int, kind: str) -> Iterator[Stored]:
    """Runs of blocks of equal size, salt, adapter and tier."""
    parent = data.parent_hash
    for (size, salt, adapter, level), run in itertools.groupby(data.blocks, _likeness):
        blocks = list(run)
        yield Stored(
            [_number(block.block_hash) for block in blocks],
            None if parent is None else _number(parent),
            [_token(token) for block in blocks for token in block.tokens],
            size,
            adapter="" if adapter is None else f"#{adapter}",
            salt=salt or "",
            medium=None if level == 0 else f"level {level}",
            extra_keys=[_extra_keys(block) for block in blocks],
            group=group,
            kind=kind,
        )
        parent = blocks[-1].block_hash


def _likeness(block: _Block) -> tuple[int, str | None, int | None, int]:
    return len(block.tokens), block.cache_salt, block.lora_id, block.cache_level


def _extra_keys(block: _Block) -> list[Any] | None:
    """What makes a block opaque: pieces of images and the like."""
    has_virtual = any(token.token_extra_id or isinstance(token.token_id, str) for token in block.tokens)
    return [block.mm_keys, has_virtual] if block.mm_keys or has_virtual else None


def _token(token: _Token) -> int:
    return token.token_id if isinstance(token.token_id, int) else 0


def _number(value: int | str) -> int:
    # Newer versions may name blocks by a text, of a digest.
    return value & _MASK if isinstance(value, int) else xxh3_64_intdigest(value.encode())
