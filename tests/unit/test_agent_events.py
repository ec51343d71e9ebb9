"""KV events: every dialect gives the same events, garbage gives Malformed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.agent.events import Batch, Cleared, Limits, Malformed, Removed, Stored, decode

DATA = Path(__file__).parents[1] / "data" / "kv"
TOKENS = list(range(32))


def pack(*events: object, rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def stored_map(**fields: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": TOKENS,
        "block_size": 16,
        **fields,
    }


def captured(name: str) -> list[Batch]:
    lines = (DATA / name).read_text().splitlines()
    return [decode(bytes.fromhex(json.loads(line)["payload"])) for line in lines]


def test_a_map_and_an_array_of_the_same_event_are_equal() -> None:
    fields = {"lora_name": "sql", "medium": "GPU", "extra_keys": [["sql"], None], "group_idx": 3}
    as_map = stored_map(lora_id=7, kv_cache_spec_kind="full_attention", **fields)
    as_array = ["BlockStored", [1, 2], None, TOKENS, 16, 7, "GPU", "sql", [["sql"], None], 3, "full_attention", None]
    expected = Stored([1, 2], None, TOKENS, 16, "sql", "", "GPU", [["sql"], None], 3, "full_attention")
    assert decode(pack(as_map)).events == decode(pack(as_array)).events == [expected]


def test_short_arrays_of_old_engines_are_read() -> None:
    batch = decode(pack(["BlockStored", [1, 2], 9, TOKENS, 16, None], ["BlockRemoved", [1]], ["AllBlocksCleared"]))
    assert batch.events == [Stored([1, 2], 9, TOKENS, 16), Removed([1]), Cleared()]


@pytest.mark.parametrize(("key", "rank"), [("data_parallel_rank", 2), ("attn_dp_rank", 3)])
def test_a_batch_may_be_a_map(key: str, rank: int) -> None:
    payload = msgspec.msgpack.encode({"ts": 1.5, "events": [{"type": "AllBlocksCleared"}], key: rank, "more": 1})
    assert decode(payload) == Batch([Cleared()], rank)


def test_hashes_of_all_kinds_become_unsigned_64_bit_integers() -> None:
    removed = {
        "type": "BlockRemoved",
        "block_hashes": [2**64 - 1, -1, b"\0" * 24 + b"\xff" * 8, b"\xff" * 24 + b"\0" * 8],
    }
    assert decode(pack(removed)).events == [Removed([2**64 - 1, 2**64 - 1, 2**64 - 1, 0])]


def test_a_parent_may_be_bytes_or_negative() -> None:
    events = decode(pack(stored_map(parent_block_hash=b"\0" * 31 + b"\5"), stored_map(parent_block_hash=-2))).events
    assert [event.parent for event in events if isinstance(event, Stored)] == [5, 2**64 - 2]


def test_unknown_types_are_counted_and_unknown_fields_skipped() -> None:
    batch = decode(pack({"type": "BlockMoved", "x": [1]}, ["Other", 1], stored_map(session_id="s", new=[{}])))
    assert batch == Batch([Stored([1, 2], None, TOKENS, 16)], 0, ignored=2)


def test_an_adapter_known_by_number_only_does_not_pass_for_the_base_model() -> None:
    (event,) = decode(pack(stored_map(lora_id=7))).events
    assert isinstance(event, Stored)
    assert event.adapter == "#7"


def test_bigrams_count_as_their_first_token() -> None:
    (event,) = decode(pack(stored_map(token_ids=[[n, n + 1] for n in TOKENS]))).events
    assert isinstance(event, Stored)
    assert event.tokens == TOKENS


def test_the_salt_field_of_sglang_is_read() -> None:
    (event,) = decode(pack(stored_map(cache_salt="tenant-a"))).events
    assert isinstance(event, Stored)
    assert event.salt == "tenant-a"


def test_all_captured_payloads_of_vllm_decode() -> None:
    batches = captured("vllm_main.jsonl") + captured("vllm_evict.jsonl") + captured("vllm_lora.jsonl")
    assert {type(event) for batch in batches for event in batch.events} == {Stored, Removed, Cleared}
    assert all(batch.rank == 0 and not batch.ignored for batch in batches)


def test_the_captured_32_byte_hashes_decode() -> None:
    ((event,),) = [batch.events for batch in captured("vllm_bytes_hash.jsonl")]
    assert isinstance(event, Stored)
    assert event.hashes[0] == 0x2167EBDFAC1C1012
    assert len(event.tokens) == 2 * event.block_size == 256


GARBAGE = {
    "empty": b"",
    "not msgpack": b"\xc1",
    "a number": b"\x05",
    "no list of events": msgspec.msgpack.encode([1.5, 3, 0]),
    "an event without a type": pack({"block_hashes": [1]}),
    "an event that is a number": pack(5),
    "an empty event": pack([]),
    "a known type with a missing field": pack({"type": "BlockStored", "block_hashes": [1]}),
    "a known type with a wrong field": pack(stored_map(token_ids="secret prompt")),
    "a float for a token": pack(stored_map(token_ids=[1.5])),
    "deep nesting": b"\x91" * 100_000,
    "deep nesting in extra keys": pack(stored_map())[:-1] + b"\x91" * 100_000,
    "an array that claims 4 billion entries": b"\x93\xcb" + b"\0" * 8 + b"\xdd\xff\xff\xff\xff",
    "text that is not UTF-8": pack({"type": "XX"}).replace(b"XX", b"\xff\xff"),
}


@pytest.mark.parametrize("payload", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_malformed(payload: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        decode(payload)
    assert "secret" not in str(caught.value)


def test_every_cut_of_a_payload_is_malformed() -> None:
    payload = pack(stored_map(), {"type": "AllBlocksCleared"})
    for length in range(len(payload)):
        with pytest.raises(Malformed):
            decode(payload[:length])


def test_a_payload_beyond_the_limits_is_malformed() -> None:
    payload = pack(stored_map())
    with pytest.raises(Malformed, match="bytes; the limit is 10"):
        decode(payload, Limits(payload_bytes=10))
    with pytest.raises(Malformed, match="2 blocks; the limit is 1"):
        decode(payload, Limits(blocks_per_event=1))


@given(st.binary(max_size=60))
def test_any_bytes_decode_or_are_malformed(data: bytes) -> None:
    for payload in (data, b"\x93\xcb" + b"\0" * 8 + b"\x91" + data):
        with contextlib.suppress(Malformed):
            assert isinstance(decode(payload), Batch)
