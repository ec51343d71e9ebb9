"""Each degraded mode that a picker tells of (`picker_degraded`): provoked, seen in the gauge, lived through, ended.

The page docs/reliability.md has the same modes in a table. Here is a whole picker without its ports over a real Redis,
and agents that are a few lines each.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis.asyncio import Redis

from picker.config import Config, Prediction
from picker.config_source import ConfigSource
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import LoadRecord, Snapshot, WorkerRecord, WorkerState, xor_of
from picker.server import Server
from picker.simulation.valkey import ValkeyServer
from tests.waiting import until

KEYS = Keys("default")
ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
TEXT = "hello there, how are you? " * 60
HEADERS = {":method": "POST", ":path": "/v1/completions"}
BODY = json.dumps({"model": "llama", "prompt": TEXT}).encode()


@dataclass
class Agent:
    """One worker's, which says what its fields are."""

    endpoint: str
    epoch: int
    state: WorkerState = WorkerState.READY
    is_silent: bool = False
    load: dict[str, Any] = field(default_factory=dict)
    _beat: int = 0
    _facts: int = 1

    def becomes(self, state: WorkerState) -> None:
        self.state = state
        self._facts += 1

    async def beat(self, redis: Redis) -> None:
        if self.is_silent:
            return
        self._beat += 1
        record = WorkerRecord(
            worker=self.endpoint, epoch=self.epoch, endpoint=self.endpoint, state=self.state, models=("llama",)
        )
        fields: dict[Any, Any] = {"record": record.pack(), "epoch": self.epoch, "facts": self._facts}
        await redis.hset(KEYS.worker(self.endpoint), mapping=fields)  # type: ignore[misc]
        if not self.load:
            await redis.set(KEYS.snapshot(self.epoch), Snapshot(self.epoch, 0, (0, 0), ()).pack())
        load = LoadRecord(self.epoch, self._beat, self._facts, **self.load)
        await redis.hset(KEYS.load, self.endpoint, load.pack())  # type: ignore[misc,arg-type]


class Rig:
    """A picker, two workers' agents, a Redis."""

    def __init__(self, valkey: ValkeyServer):
        self.valkey = valkey
        prediction = Prediction(window_s=5.0, sustained_s=10.0, least_tokens=100)
        config = Config(redis=valkey.url, stale_after_s=0.5, prediction=prediction)
        self.server = Server(config, ConfigSource())
        self.agents = [Agent(ONE, 1), Agent(TWO, 2)]
        self.redis = connect(valkey.url, KEYS)

    @property
    def slots(self) -> list[int]:
        view = self.server._view
        return [
            slot for slot in (view.slot_of(agent.endpoint, agent.epoch) for agent in self.agents) if slot is not None
        ]

    async def agents_run(self) -> None:
        while True:
            for agent in self.agents:
                try:
                    await agent.beat(self.redis)
                except Exception:  # while Redis is away
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.05)

    def modes(self) -> set[str]:
        """What the metrics say is amiss."""
        self.server._insight.look(self.server._degraded(), time.monotonic())
        families = text_string_to_metric_families(self.server._metrics.exposition("")[0].decode())
        samples = [sample for family in families for sample in family.samples if sample.name == "picker_degraded"]
        assert len(samples) >= 9
        return {sample.labels["mode"] for sample in samples if sample.value}

    async def begins(self, mode: str) -> None:
        await until(lambda: mode in self.modes())

    async def ends(self, mode: str) -> None:
        await until(lambda: mode not in self.modes())

    async def pick(self) -> Picked | NotPicked:
        answer = await self.server._picker.pick(Pick(HEADERS, BODY))
        if isinstance(answer, Picked) and answer.placement:
            self.server._picker.release(answer.placement)
        return answer

    async def picked(self) -> str:
        answer = await self.pick()
        assert isinstance(answer, Picked)
        return answer.endpoints[0]


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        parts = (rig.agents_run(), rig.server._feed.run(), rig.server._insight.run())
        running = [tasks.create_task(part) for part in parts]
        yield
        for task in running:
            task.cancel()


@pytest.fixture
async def idle() -> AsyncIterator[Rig]:
    async with ValkeyServer() as valkey:
        rig = Rig(valkey)
        yield rig
        rig.server._picker.close()
        await rig.redis.aclose()


@pytest.fixture
async def rig(idle: Rig) -> AsyncIterator[Rig]:
    async with running(idle):
        await until(lambda: idle.modes() == set() and len(idle.slots) == 2)
        yield idle


async def test_fleet_unread_envoy_balances_by_itself(idle: Rig) -> None:
    assert "fleet_unread" in idle.modes()
    answer = await idle.pick()
    assert isinstance(answer, Picked) and answer.endpoints == ()
    async with running(idle):
        await idle.ends("fleet_unread")
        await until(lambda: len(idle.server._view.usable_endpoints()) == 2)
        assert await idle.picked() in (ONE, TWO)


async def test_redis_picks_go_by_what_is_known(rig: Rig) -> None:
    await rig.valkey.kill()
    await rig.begins("redis")
    assert {await rig.picked() for _ in range(20)} <= {ONE, TWO}
    assert "workers_stale" not in rig.modes()
    await rig.valkey.start()
    await rig.ends("redis")
    assert await rig.picked() in (ONE, TWO)


async def test_no_worker_ready_requests_are_refused_with_503(rig: Rig) -> None:
    for agent in rig.agents:
        agent.becomes(WorkerState.UNHEALTHY)
    await rig.begins("no_worker_ready")
    answer = await rig.pick()
    assert isinstance(answer, NotPicked) and (answer.status, answer.reason) == (503, "no-worker-ready")
    rig.agents[1].becomes(WorkerState.READY)
    await rig.ends("no_worker_ready")
    assert await rig.picked() == TWO


async def test_workers_stale_the_silent_one_is_not_picked(rig: Rig) -> None:
    rig.agents[0].is_silent = True
    await rig.begins("workers_stale")
    assert {await rig.picked() for _ in range(20)} == {TWO}
    rig.agents[0].is_silent = False
    await rig.ends("workers_stale")


async def test_workers_cordoned_the_cordoned_one_is_not_picked(rig: Rig) -> None:
    await rig.redis.hset(KEYS.cordons, ONE, "disk")  # type: ignore[misc]
    await rig.begins("workers_cordoned")
    assert {await rig.picked() for _ in range(20)} == {TWO}
    await rig.redis.hdel(KEYS.cordons, ONE)  # type: ignore[misc]
    await rig.ends("workers_cordoned")


async def test_breakers_open_the_failing_one_is_left_out(rig: Rig) -> None:
    picker = rig.server._picker
    failures = 0
    while "breakers_open" not in rig.modes():
        answer = await picker.pick(Pick(HEADERS, BODY, subset=frozenset({ONE})))
        assert isinstance(answer, Picked)
        picker.first_byte(answer.placement, 500, ONE)
        picker.release(answer.placement)
        failures += 1
        assert failures <= 10
    assert {await rig.picked() for _ in range(20)} == {TWO}
    answer = await picker.pick(Pick(HEADERS, BODY, subset=frozenset({ONE})))
    assert isinstance(answer, Picked), "the only one is taken all the same"
    picker.first_byte(answer.placement, 200, ONE)
    picker.release(answer.placement)
    assert "breakers_open" not in rig.modes()


BLOCKS = [101, 102, 103]


async def test_prefixes_dirty_and_events_lag_the_cache_does_not_count_until_a_snapshot_is_read(rig: Rig) -> None:
    # An agent has counted two thousand events of which none has come.
    digest = {"kv_count": len(BLOCKS), "kv_xor": xor_of(BLOCKS)}
    rig.agents[0].load = {"kv_seq": 2000, **digest}
    await rig.begins("prefixes_dirty")
    await rig.begins("events_lag")
    assert rig.server._view.hit_blocks(BLOCKS).max() == 0
    assert {await rig.picked() for _ in range(20)} <= {ONE, TWO}
    await rig.redis.set(KEYS.snapshot(1), Snapshot(1, 2000, (0, 0), BLOCKS).pack())
    await rig.ends("prefixes_dirty")
    await rig.ends("events_lag")
    slot = rig.server._view.slot_of(ONE, 1)
    assert slot is not None and rig.server._view.hit_blocks(BLOCKS)[slot] == len(BLOCKS)


async def test_prediction_what_is_predicted_does_not_come_true_and_then_does(rig: Rig) -> None:
    view, truth, slot = rig.server._view, rig.server._truth, rig.slots[0]

    async def look(begin: int, reused: int) -> None:
        for now in range(begin, begin + 60, 2):
            view.reuse.placed(slot, 1000, 900, now)
            view.reuse.counted(slot, 1000, reused, now)
            await truth.look(float(now))

    await look(0, reused=100)
    assert "prediction" in rig.modes()
    assert await rig.picked() in (ONE, TWO)
    await look(100, reused=880)
    assert "prediction" not in rig.modes()
