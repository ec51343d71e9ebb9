"""Field cases of security about prefixes: who may look like whom, what hostile events and prompts can cost."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
import zmq
import zmq.asyncio

from picker.agent.blocks import BlockTable
from picker.agent.events import Batch, Malformed, Stored, decode
from picker.agent.subscriber import Subscriber
from picker.fleet.index import PrefixIndex, depths
from picker.fleet.placed import PlacedBlocks
from picker.prompts import chain
from tests.integration.traffic import until


def stored(hashes: list[int], tokens: list[int], size: int = 16, **more: object) -> dict[str, object]:
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tokens,
        "block_size": size,
        **more,
    }


def payload(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.0, list(events), 0])


def blocks_of(data: bytes, table: BlockTable) -> list[int]:
    """The index blocks that come of a payload."""
    try:
        events = decode(data).events
    except Malformed:
        return []
    return [block for event in events for block in table.apply(event).stored]


def test_se_08_a_salt_an_adapter_and_a_model_of_one_name_are_three_things() -> None:
    tokens = list(range(64))
    scopes = [
        chain.scope("m", salt="COLLIDE"),
        chain.scope("m", adapter="COLLIDE"),
        chain.scope("COLLIDE"),
        chain.scope("m", adapter="COL", salt="LIDE"),
        chain.scope("mCOLLIDE"),
    ]
    assert len({tuple(chain.index_blocks(scope, tokens)) for scope in scopes}) == len(scopes)


def test_se_08_so_they_are_in_what_an_engine_announces() -> None:
    tokens, hashes = list(range(64)), [1, 2, 3, 4]
    plain = stored(hashes, tokens)
    salted = stored(hashes, tokens, extra_keys=[["COLLIDE"], None, None, None])
    adapted = stored(hashes, tokens, lora_name="COLLIDE", extra_keys=[["COLLIDE"]] * 4)
    published = [tuple(blocks_of(payload(event), BlockTable("m"))) for event in (plain, salted, adapted)]
    assert len(set(published)) == 3
    assert all(published)


async def test_se_13_a_topic_claims_no_identity() -> None:
    """What a connection delivers is its own worker's, whatever the topic says: the name comes from the settings."""

    class Told:
        def __init__(self) -> None:
            self.batches: list[Batch] = []

        def batch(self, batch: Batch) -> None:
            self.batches.append(batch)

        def lost(self) -> None:
            pass

        restarted = lost

    with zmq.asyncio.Context() as context:
        publisher = context.socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        told = Told()
        async with asyncio.TaskGroup() as tasks:
            run = tasks.create_task(Subscriber(context, f"tcp://127.0.0.1:{port}", None, told).run())

            async def heard() -> bool:
                topic = b"kv@10.0.0.6:8000@another-pool"
                await publisher.send_multipart([topic, bytes(8), payload(stored([1], list(range(16))))])
                return bool(told.batches)

            await until(heard)
            run.cancel()
        publisher.close(0)
    [event] = told.batches[0].events
    assert isinstance(event, Stored)
    assert not hasattr(event, "worker")


NESTED = b"\x91" * 10_000 + b"\xc0"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        payload(stored([1], list(range(16))))[:-7],
        NESTED,
        msgspec.msgpack.encode([1.0, NESTED.hex(), 0]),
        payload(stored(list(range(100_000)), [])),
        payload(stored([1], ["x"] * 16)),  # type: ignore[list-item]
        payload(stored([1], list(range(16)), size=-16)),
        b"\xff",
    ],
)
def test_se_14_an_event_that_makes_no_sense_is_dropped(data: bytes) -> None:
    table, tokens = BlockTable("m"), list(range(64))
    assert blocks_of(data, table) == []
    good = payload(stored([1, 2, 3, 4], tokens))
    assert blocks_of(good, table) == chain.index_blocks(chain.scope("m"), tokens)


def test_se_14_an_unknown_event_is_skipped_and_the_others_count() -> None:
    batch = decode(payload({"type": "SomethingNew", "x": [1]}, stored([1], list(range(16)))))
    assert (len(batch.events), batch.ignored) == (1, 1)


def test_se_16_a_look_up_costs_no_more_however_many_lengths_are_held() -> None:
    index, blocks = PrefixIndex(), list(range(1, 2049))
    for slot in range(64):
        index.trust(slot, True)
        index.store(slot, blocks[: 2048 - slot])
    asked = 0

    def owners(block: int) -> int:
        nonlocal asked
        asked += 1
        return index.owners(block)

    found = depths(blocks, owners)
    assert sum(mask.bit_count() for _, mask in found) == 64
    assert asked < 16 * 13 + 20, "16 lengths are looked for, the others estimated"


def test_se_16_one_client_with_a_million_prefixes_takes_a_bounded_place() -> None:
    placed, rng = PlacedBlocks(ttl_s=1800.0, blocks_per_slot=1000), random.Random(0)
    for number in range(100_000):
        placed.place(number % 4, [rng.getrandbits(64)], now=float(number))
    assert repr(placed).startswith("<PlacedBlocks 4000 blocks of 4 slots")
