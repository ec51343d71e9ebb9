"""Two versions on one Redis: what the next one would write under our keys costs nobody else anything.

The next version is played by records with another version byte, and more behind it. Another schema has other keys:
test_re_26_pools_and_versions_do_not_see_each_other.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from picker.redisview import records
from picker.redisview.records import KvEvent, KvOp, LoadRecord, Snapshot, WorkerRecord, WorkerState
from picker.simulation.valkey import ValkeyServer
from tests.integration.test_redis_view import FAST, Agent, Pool
from tests.waiting import until

NEXT = "10.0.0.2:8000"
EPOCH = 77


@pytest.fixture
async def pool(redis_server: ValkeyServer) -> AsyncIterator[Pool]:
    async with Pool(redis_server) as pool:
        yield pool


def next_version(packed: bytes) -> bytes:
    return b"\x02" + packed[1:] + b"more!"


def facts(**more: Any) -> dict[Any, Any]:
    record = WorkerRecord(worker=NEXT, epoch=EPOCH, endpoint=NEXT, state=WorkerState.READY, models=("llama",))
    return {"record": json.dumps(json.loads(record.pack()) | more), "epoch": EPOCH, "facts": 1}


async def test_a_field_that_is_new_in_the_worker_facts_is_ignored(pool: Pool) -> None:
    picker = await pool.picker()
    await pool.redis.hset(pool.keys.worker(NEXT), mapping=facts(quantum={"a": [1]}, models=["llama", "b"]))  # type: ignore[misc]
    await pool.redis.hset(pool.keys.load, NEXT, LoadRecord(EPOCH, 1, 1).pack())  # type: ignore[misc,arg-type]
    await until(lambda: picker.view.slot_of(NEXT, EPOCH) is not None)
    assert picker.view.usable_endpoints() == (NEXT,)
    assert picker.feed.statistics().foreign == 0


async def test_records_of_the_next_version_under_our_keys_take_nothing_away(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 300))
    await until(lambda: picker.mirrors(agent))
    await pool.redis.hset(pool.keys.worker(NEXT), mapping=facts())  # type: ignore[misc]
    await pool.redis.hset(pool.keys.load, NEXT, next_version(LoadRecord(EPOCH, 1, 1).pack()))  # type: ignore[misc,arg-type]
    await pool.redis.set(pool.keys.snapshot(EPOCH), next_version(Snapshot(EPOCH, 1, (0, 0), (5,)).pack()))
    for number in range(1, 20):
        event = KvEvent(EPOCH, number, KvOp.STORE, (number,)).pack()
        await pool.redis.xadd(pool.keys.events, {"e": next_version(event)})
        agent.store([1000 + number])
    await until(lambda: picker.feed.statistics().foreign >= 20)
    await until(lambda: picker.mirrors(agent))
    assert picker.view.usable_endpoints() == (agent.record.endpoint,)
    assert picker.feed.faults == 0


async def test_a_worker_whose_agent_goes_ahead_is_silent_to_old_pickers_and_a_rollback_brings_it_back(
    pool: Pool,
) -> None:
    agent, other = await pool.agent(), await _beside(pool)
    picker = await pool.picker()
    await until(lambda: len(picker.view.usable_endpoints()) == 2)
    await pool.stop(agent)
    worker, epoch = agent.record.worker, EPOCH
    for beat in range(30):
        ahead = next_version(LoadRecord(epoch, beat, 1).pack())
        await pool.redis.hset(pool.keys.load, worker, ahead)  # type: ignore[misc,arg-type]
    await until(lambda: picker.feed.statistics().foreign > 0)
    # Whoever is of the old version is placed on all the while.
    assert other.record.endpoint in picker.view.usable_endpoints()
    back = await pool.agent()
    await until(lambda: picker.view.slot_of(worker, back.record.epoch) is not None)
    await until(lambda: set(picker.view.usable_endpoints()) == {worker, other.record.endpoint})


async def _beside(pool: Pool) -> Agent:
    record = WorkerRecord(worker=NEXT, epoch=5, endpoint=NEXT, state=WorkerState.READY, models=("llama",))
    return await pool.agent(record)


async def test_a_picker_that_reads_both_versions_serves_both_while_agents_are_replaced(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the next version of a picker has to do: read the record before as well."""
    old = LoadRecord.unpack

    def both(data: bytes) -> LoadRecord:
        return old(b"\x01" + data[1 : records._LOAD.size]) if data[:1] == b"\x02" else old(data)

    monkeypatch.setattr(LoadRecord, "unpack", both)
    agent, picker = await pool.agent(), await pool.picker(FAST)
    await pool.redis.hset(pool.keys.worker(NEXT), mapping=facts())  # type: ignore[misc]
    await pool.redis.hset(pool.keys.load, NEXT, next_version(LoadRecord(EPOCH, 1, 1).pack()))  # type: ignore[misc,arg-type]
    await until(lambda: set(picker.view.usable_endpoints()) == {NEXT, agent.record.endpoint})
    assert picker.feed.statistics().foreign == 0
