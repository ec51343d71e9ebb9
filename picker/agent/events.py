"""KV-cache events as engines publish them: payload bytes to `Batch`.

One MessagePack layout in many dialects, all of which are read here:

    batch    [ts, [event, ..], rank]                 vLLM, SGLang, TensorRT-LLM
             {"ts", "events", "data_parallel_rank"}  an early vLLM
    event    {"type": "BlockStored", ..}             vLLM from 0.24 on, SGLang, TensorRT-LLM
             ["BlockStored", hashes, parent, ..]     vLLM up to 0.23, the llm-d simulator's default
    hash     unsigned 64-bit integer                 vLLM
             signed 64-bit integer                   SGLang, TensorRT-LLM
             32 bytes, of which the last 8 count     vLLM with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0

Fields that are not named here are skipped, events of other types are counted. Whatever else does not fit is
`Malformed`: a batch is taken whole or not at all, because the part that cannot be read might have been a removal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec

_MASK = (1 << 64) - 1

Hash: TypeAlias = int | bytes
# SGLang's EAGLE mode announces bigrams (token, next token): a block of them starts with the same tokens.
Token: TypeAlias = int | tuple[int, int]


class Malformed(ValueError):
    """A payload that is no batch of KV events, or one beyond the limits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds the cost of one payload. vLLM 0.32 sends 74 bytes for a block of 16 tokens: 128k tokens are 0.6 MB."""

    payload_bytes: int = 16 * 2**20
    blocks_per_event: int = 65_536


@dataclass(frozen=True, slots=True)
class Stored:
    """The engine now holds these blocks, each the child of the one before it, the first the child of `parent`.

    `hashes` and `parent` are the engine's own, as unsigned 64-bit integers; `parent` is None where a prompt begins.
    `adapter` is "" for the base model. `extra_keys` holds, for each block, what else went into its hash: not tagged.
    """

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    block_size: int
    adapter: str = ""
    salt: str = ""
    medium: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group: int = 0
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """One copy of each of these blocks is gone."""

    hashes: list[int]
    medium: str | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks are gone."""


Event: TypeAlias = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Batch:
    """What happened in one engine step, in order. `ignored` counts events of types that are not known."""

    events: list[Event]
    rank: int | None = None
    ignored: int = 0


class _StoredFields(msgspec.Struct):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    token_ids: list[Token]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None

    def normal(self) -> Stored:
        return Stored(
            [_unsigned(value) for value in self.block_hashes],
            None if self.parent_block_hash is None else _unsigned(self.parent_block_hash),
            [token if isinstance(token, int) else token[0] for token in self.token_ids],
            self.block_size,
            _adapter(self.lora_name, self.lora_id),
            "",
            self.medium,
            self.extra_keys,
            self.group_idx or 0,
            self.kv_cache_spec_kind,
        )


class _RemovedFields(msgspec.Struct):
    block_hashes: list[Hash]
    medium: str | None = None
    group_idx: int | None = None

    def normal(self) -> Removed:
        return Removed([_unsigned(value) for value in self.block_hashes], self.medium, self.group_idx or 0)


class _ClearedFields(msgspec.Struct):
    def normal(self) -> Cleared:
        return Cleared()


class _StoredArray(_StoredFields, array_like=True, tag="BlockStored"):
    pass


class _RemovedArray(_RemovedFields, array_like=True, tag="BlockRemoved"):
    pass


class _ClearedArray(_ClearedFields, array_like=True, tag="AllBlocksCleared"):
    pass


class _StoredMap(_StoredFields, tag="BlockStored"):
    cache_salt: str | None = None

    def normal(self) -> Stored:
        return replace(super().normal(), salt=self.cache_salt or "")


class _RemovedMap(_RemovedFields, tag="BlockRemoved"):
    pass


class _ClearedMap(_ClearedFields, tag="AllBlocksCleared"):
    pass


class _BatchArray(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]
    rank: int | None = None


class _BatchMap(msgspec.Struct):
    events: list[msgspec.Raw]
    data_parallel_rank: int | None = None
    attn_dp_rank: int | None = None

    @property
    def rank(self) -> int | None:
        return self.attn_dp_rank if self.data_parallel_rank is None else self.data_parallel_rank


class _TypeOfArray(msgspec.Struct, array_like=True):
    type: str


class _TypeOfMap(msgspec.Struct):
    type: str


_KNOWN = frozenset({"BlockStored", "BlockRemoved", "AllBlocksCleared"})
_batch_array = msgspec.msgpack.Decoder(_BatchArray)
_batch_map = msgspec.msgpack.Decoder(_BatchMap)
_event_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)
_event_map = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_type_of_array = msgspec.msgpack.Decoder(_TypeOfArray)
_type_of_map = msgspec.msgpack.Decoder(_TypeOfMap)


def decode(payload: bytes, limits: Limits = Limits()) -> Batch:
    """Raises Malformed. The message says what is wrong and never holds token ids."""
    if len(payload) > limits.payload_bytes:
        raise Malformed(f"a batch of {len(payload)} bytes; the limit is {limits.payload_bytes}")
    # A text that is not UTF-8 or nests too deep raises these two.
    try:
        return _decode(payload, limits)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"a batch of {len(payload)} bytes: {type(error).__name__}: {error}") from None


def _decode(payload: bytes, limits: Limits) -> Batch:
    batch = (_batch_map if _is_map(payload) else _batch_array).decode(payload)
    events = [event for raw in batch.events if (event := _event(memoryview(raw), limits)) is not None]
    return Batch(events, batch.rank, len(batch.events) - len(events))


def _event(raw: memoryview, limits: Limits) -> Event | None:
    is_map = _is_map(raw)
    try:
        fields: _StoredFields | _RemovedFields | _ClearedFields = (_event_map if is_map else _event_array).decode(raw)
    except msgspec.ValidationError:
        if (_type_of_map if is_map else _type_of_array).decode(raw).type in _KNOWN:
            raise
        return None
    if not isinstance(fields, _ClearedFields) and len(fields.block_hashes) > limits.blocks_per_event:
        raise Malformed(f"an event of {len(fields.block_hashes)} blocks; the limit is {limits.blocks_per_event}")
    return fields.normal()


def _is_map(data: bytes | memoryview) -> bool:
    return len(data) > 0 and (data[0] & 0xF0 == 0x80 or data[0] in (0xDE, 0xDF))


def _unsigned(value: Hash) -> int:
    return value & _MASK if isinstance(value, int) else int.from_bytes(value[-8:], "big")


def _adapter(name: str | None, number: int | None) -> str:
    # vLLM before 0.11 gives a number only. It must not pass for the base model; no request will ask for this name.
    if name is None:
        return "" if number is None else f"#{number}"
    return name
