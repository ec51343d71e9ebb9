"""A platform gives orders through a real Redis or a file, and a whole picker follows them and tells how things are."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from picker.config import Config
from picker.config_source import ConfigSource
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.platform.settings import PlatformSettings
from picker.redisview.connection import connect
from picker.server import Server
from picker.simulation.valkey import ValkeyServer
from tests.integration.test_degraded_modes import BODY, HEADERS, KEYS, ONE, TWO, Agent
from tests.waiting import until


@dataclass
class Rig:
    """A picker, two workers' agents, and the platform's way to Redis."""

    server: Server
    redis: Redis
    valkey: ValkeyServer

    async def orders(self, **sections: object) -> None:
        texts = {name: each if isinstance(each, str) else json.dumps(each) for name, each in sections.items()}
        await self.redis.hset(KEYS.platform, mapping=texts)  # type: ignore[misc,arg-type]

    async def pick(self, tenant: str = "a", model: str = "llama") -> Picked | NotPicked:
        headers = {**HEADERS, "x-gateway-inference-fairness-id": tenant}
        answer = await self.server._picker.pick(Pick(headers, BODY.replace(b"llama", model.encode())))
        if isinstance(answer, Picked) and answer.placement:
            self.server._picker.release(answer.placement)
        return answer

    async def picked(self) -> set[str]:
        answers = [await self.pick(str(number)) for number in range(8)]
        return {each.endpoints[0] for each in answers if isinstance(each, Picked)}

    def follows(self, revision: str) -> Callable[[], bool]:
        return lambda: self.server._platform.followed().revision == revision and not self.server._platform.error


@asynccontextmanager
async def rig(valkey: ValkeyServer, policy: str = "random", **platform: Any) -> AsyncIterator[Rig]:
    settings = PlatformSettings(read_every_s=0.05, write_every_s=0.1, **platform)
    server = Server(Config(redis=valkey.url, policy=policy, platform=settings), ConfigSource())
    agents, redis = [Agent(ONE, 1), Agent(TWO, 2)], connect(valkey.url, KEYS)
    async with asyncio.TaskGroup() as tasks:
        parts = (
            beat(agents, redis), server._feed.run(), server._insight.run(), server._sizing.run(), server._platform.run()
        )  # fmt: skip
        running = [tasks.create_task(part) for part in parts]
        await until(lambda: len(server._view.usable_endpoints()) == 2)
        yield Rig(server, redis, valkey)
        for task in running:
            task.cancel()
    await redis.aclose()


async def beat(agents: list[Agent], redis: Redis) -> None:
    while True:
        # While Redis is away there is nobody to tell.
        with contextlib.suppress(Exception):
            for agent in agents:
                await agent.beat(redis)
        await asyncio.sleep(0.05)


async def test_quotas_cordons_and_placement_are_followed_and_lifted(redis_server: ValkeyServer) -> None:
    async with rig(redis_server, orders="redis") as it:
        assert await it.picked() == {ONE, TWO}
        quota = {"tenants": ["acme"], "tokens_per_s": 0.001, "burst_s": 1000}
        await it.orders(revision="1", quotas=[quota], cordons={ONE: "moves"}, tenants={"acme": 2})
        await until(it.follows("1"))
        assert await it.picked() == {TWO}
        assert isinstance(await it.pick("acme"), Picked)
        refused = await it.pick("acme")
        assert isinstance(refused, NotPicked)
        assert refused.status == 429
        assert isinstance(await it.pick("other"), Picked)
        await it.orders(revision="2", cordons={}, placement={"llama": [ONE], "other": []})
        await until(it.follows("2"))
        assert await it.picked() == {ONE}
        assert isinstance(await it.pick("acme"), NotPicked), "a quota that stays as it was has been spent"
        await it.orders(revision="3", placement={"llama": ["gone"]}, quotas=[])
        await until(it.follows("3"))
        nobody = await it.pick("acme")
        assert isinstance(nobody, NotPicked)
        assert nobody.status == 503
        await it.orders(revision="4", placement={})
        await until(it.follows("4"))
        assert await it.picked() == {ONE, TWO}


async def test_a_bad_write_changes_nothing_and_is_seen(redis_server: ValkeyServer) -> None:
    async with rig(redis_server, orders="redis", state="redis") as it:
        await it.orders(revision="good", cordons={ONE: "moves"})
        await until(it.follows("good"))
        bad: dict[str, dict[str, Any]] = {
            "is not JSON": {"cordons": "{"},
            "expected `str`, got `int`": {"cordons": {TWO: 3}},
            "expected `float` > 0": {"cordons": {}, "quotas": [{"tokens_per_s": -1}]},
            "a field is none of": {"cordon": {TWO: "a section that there is not"}},
            "more than platform.max_bytes": {"cordons": {"x": "y" * (1 << 20)}},
        }
        for expected, sections in bad.items():
            before = it.server._platform.refused
            await it.orders(revision="bad", **sections)
            await until(lambda expected=expected: expected in it.server._platform.error)  # type: ignore[misc]
            assert it.server._platform.refused > before
            assert await it.picked() == {TWO}
            assert it.server._degraded()["platform"]
            await it.redis.delete(KEYS.platform)
            await it.orders(revision="good", cordons={ONE: "moves"})
            await until(it.follows("good"))
            assert not it.server._degraded()["platform"]
        await it.redis.set(KEYS.platform, "no hash")
        await until(lambda: "is no HASH" in it.server._platform.error)

        async def is_told() -> bool:
            picker = json.loads(await it.redis.hget(KEYS.state, "picker") or "{}")  # type: ignore[misc]
            return bool(picker) and "is no HASH" in picker["orders"]["error"]

        await until(is_told, within_s=30)


async def test_orders_that_are_gone_are_still_followed(redis_server: ValkeyServer) -> None:
    async with rig(redis_server, orders="redis") as it:
        await it.orders(revision="1", cordons={ONE: ""})
        await until(it.follows("1"))
        await it.redis.flushall()
        await until(lambda: "is not there" in it.server._platform.error)
        assert await it.picked() == {TWO}
        await it.orders(revision="1", cordons={ONE: ""})
        await until(it.follows("1"))


async def test_the_state_is_told_while_a_picker_runs_and_expires_after_it(redis_server: ValkeyServer) -> None:
    async with rig(redis_server, state="redis") as it:
        await it.pick()

        async def told() -> dict[str, Any]:
            fields = await it.redis.hgetall(KEYS.state)  # type: ignore[misc]
            return {name.decode(): json.loads(value) for name, value in fields.items()}

        async with asyncio.timeout(30):
            while not (state := await told()) or "llama" not in state["models"]:
                await asyncio.sleep(0.05)
        assert set(state["workers"]) == {ONE, TWO}
        assert state["workers"][ONE]["is_usable"]
        assert state["models"]["llama"]["resident"] == 2
        assert state["picker"]["pickers"] == 1
        assert 0 < await it.redis.ttl(KEYS.state) <= 1


async def test_orders_and_state_are_files_where_that_is_wanted(redis_server: ValkeyServer, tmp_path: Path) -> None:
    orders, state = tmp_path / "orders.yaml", tmp_path / "state.json"
    async with rig(redis_server, orders=str(orders), state=str(state)) as it:
        await until(lambda: "cannot be read" in it.server._platform.error)
        orders.write_text(f"revision: r\ncordons: {{'{ONE}': why}}\n")
        await until(it.follows("r"))
        assert await it.picked() == {TWO}
        orders.write_text("cordons: [")
        await until(lambda: bool(it.server._platform.error))
        assert await it.picked() == {TWO}

        def is_told() -> bool:
            return state.exists() and "is not YAML" in json.loads(state.read_text())["picker"]["orders"]["error"]

        await until(is_told)
        orders.write_text("revision: none\n")
        await until(it.follows("none"))
        assert await it.picked() == {ONE, TWO}


async def test_an_operators_cordon_and_a_platforms_hold_besides_one_another(redis_server: ValkeyServer) -> None:
    async with rig(redis_server, orders="redis") as it:
        cordons = it.server._insight._cordons
        await it.orders(revision="1", cordons={ONE: ""})
        await until(it.follows("1"))
        await cordons.cordon(TWO, "mine")
        assert it.server._view.usable_endpoints() == ()
        await cordons.uncordon(ONE)
        await cordons.uncordon(TWO)
        assert it.server._view.usable_endpoints() == (TWO,)
        await it.orders(revision="2", cordons={})
        await until(it.follows("2"))
        assert it.server._view.usable_endpoints() == (ONE, TWO)


@pytest.mark.parametrize("written", ["orders", "state"])
async def test_without_redis_picks_go_on_and_nothing_is_lost(redis_server: ValkeyServer, written: str) -> None:
    async with rig(redis_server, **{written: "redis"}) as it:
        await it.orders(revision="1", cordons={ONE: ""})
        if written == "orders":
            await until(it.follows("1"))
        await it.valkey.stop()
        await until(lambda: it.server._degraded()["redis"])
        assert await it.picked() == ({TWO} if written == "orders" else {ONE, TWO})
