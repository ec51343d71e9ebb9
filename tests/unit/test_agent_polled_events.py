"""TensorRT-LLM's events as JSON, to the same events as the others'."""

from __future__ import annotations

import json
from typing import Any

import pytest

from picker.agent.blocks import BlockTable
from picker.agent.events import Limits, Malformed, Removed, Stored
from picker.agent.polled_events import Polled, PolledDecoder
from picker.prompts import chain

TOKENS = list(range(1, 300))


def block(value: int | str, tokens: list[int], **more: Any) -> dict[str, Any]:
    unique = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in tokens]
    common = {"type": "stored_block", "cache_level": 0, "priority": 35, "mm_keys": []}
    return common | {"block_hash": value, "tokens": unique} | more


def event(number: int, data: dict[str, Any], window: int = 4096, **more: Any) -> dict[str, Any]:
    return {"event_id": number, "data": data, "window_size": window, **more}


def stored(number: int, parent: int | str | None, *blocks: dict[str, Any], window: int = 4096) -> dict[str, Any]:
    return event(number, {"type": "stored", "parent_hash": parent, "blocks": list(blocks)}, window)


CREATED = event(0, {"type": "created", "num_blocks_per_cache_level": [100, 0]})


def decode(*events: dict[str, Any]) -> list[Polled]:
    return PolledDecoder().decode(json.dumps(events).encode())


def index(*events: dict[str, Any]) -> BlockTable:
    table = BlockTable("m")
    for polled in decode(*events):
        for change in polled.events:
            table.apply(change)
    return table


def index_blocks(tokens: list[int], salt: str = "") -> set[int]:
    return set(chain.index_blocks(chain.scope("m", "", salt), tokens))


def test_stored_and_removed_blocks_are_read() -> None:
    first, second, third = decode(
        CREATED, stored(1, None, block(-7, [1, 2])), event(2, {"type": "removed", "block_hashes": [-7]})
    )
    assert (first.number, first.events, first.is_first) == (0, [], True)
    (change,) = second.events
    assert isinstance(change, Stored)
    assert (change.hashes, change.parent, change.tokens, change.block_size) == ([2**64 - 7], None, [1, 2], 2)
    assert third.events == [Removed([2**64 - 7], None, 4096)]


def test_blocks_give_the_index_blocks_of_their_tokens_and_a_short_last_one_counts_as_far_as_it_goes() -> None:
    blocks = [block(number, TOKENS[32 * number : 32 * number + 32]) for number in range(8)]
    events = (CREATED, stored(1, None, *blocks, block(8, TOKENS[256:270])))
    assert index(*events).published == index_blocks(TOKENS[:270])
    assert index(*events).statistics().nodes == 9


def test_a_later_event_follows_its_parent_by_name_whatever_it_is_called() -> None:
    table = index(
        CREATED, stored(1, None, block("ab" * 32, TOKENS[:64])), stored(2, "ab" * 32, block("x", TOKENS[64:128]))
    )
    assert table.published == index_blocks(TOKENS[:128])


def test_a_salt_is_part_of_the_prefix() -> None:
    assert index(stored(1, None, block(1, TOKENS[:64], cache_salt="t"))).published == index_blocks(TOKENS[:64], "t")


def test_only_the_largest_window_counts() -> None:
    small = event(1, {"type": "created", "num_blocks_per_cache_level": [9, 0]}, window=512)
    table = index(CREATED, small, stored(2, None, block(1, TOKENS[:64]), window=512))
    assert not table.published
    assert table.statistics().counters.other_attention == 1


def test_an_image_makes_a_block_opaque() -> None:
    table = index(CREATED, stored(1, None, block(1, TOKENS[:64]), block(2, TOKENS[64:128], mm_keys=[{"hash": "x"}])))
    assert table.published == index_blocks(TOKENS[:64])
    assert table.statistics().counters.opaque == 1
    virtual = block(1, TOKENS[:64])
    virtual["tokens"][3]["token_extra_id"] = 5
    assert not index(stored(1, None, virtual)).published


def test_a_block_that_leaves_the_gpu_is_gone_and_a_change_of_priority_is_none() -> None:
    moved = {"type": "event_diff", "old_value": 0, "new_value": 1}
    base = (CREATED, stored(1, None, block(1, TOKENS[:64])))
    priority = event(2, {"type": "updated", "block_hash": 1, "cache_level": None, "priority": moved})
    assert index(*base, priority).published
    assert not index(*base, event(2, {"type": "updated", "block_hash": 1, "cache_level": moved})).published
    assert not index(CREATED, stored(1, None, block(1, TOKENS[:64], cache_level=1))).published


def test_an_adapter_known_by_number_is_not_the_base_model() -> None:
    assert not index(stored(1, None, block(1, TOKENS[:64], lora_id=3))).published & index_blocks(TOKENS[:64])


def test_events_of_unknown_types_change_nothing() -> None:
    assert decode(event(3, {"type": "novelty", "more": [1]}))[0].events == []


@pytest.mark.parametrize("page", [b"", b"{}", b"[{}]", b'[{"event_id":1}]', b"\xff", b"[" * 100_000])
def test_what_is_no_page_of_events_is_malformed(page: bytes) -> None:
    with pytest.raises(Malformed):
        PolledDecoder().decode(page)


def test_a_page_beyond_the_limit_is_malformed() -> None:
    with pytest.raises(Malformed, match="limit is 10"):
        PolledDecoder(Limits(payload_bytes=10)).decode(b"[" + b" " * 20 + b"]")
