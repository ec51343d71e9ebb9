"""An InferencePool and its pods, told by an API server (a double, over HTTP), and a picker that serves them.

There are no agents here but where a test writes their records; the rest of the picker is whole, without its ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from picker.config import Config
from picker.config_files import ConfigError
from picker.config_source import ConfigSource
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.kubernetes.settings import KubernetesPool
from picker.redisview.connection import connect
from picker.server import Server
from picker.simulation.valkey import ValkeyServer
from tests.integration.kubernetes_api import V1, V1ALPHA2, ApiServer, serving_api
from tests.integration.test_degraded_modes import KEYS, Agent
from tests.waiting import until

HEADERS = {":method": "POST", ":path": "/v1/completions"}
BODY = json.dumps({"model": "llama", "prompt": "hello there, how are you? " * 60}).encode()
POOL: dict[str, Any] = {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": [{"number": 8000}]}
NO_REDIS = "redis://127.0.0.1:1"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with serving_api(tmp_path) as api:
        yield api


@asynccontextmanager
async def serving(api: ApiServer, redis: str = NO_REDIS, **settings: Any) -> AsyncIterator[Server]:
    pool = KubernetesPool(namespace="llm", kubeconfig=str(api.kubeconfig), **settings)
    server = Server(Config(redis=redis, kubernetes=pool), ConfigSource())
    async with contextlib.AsyncExitStack() as exits, asyncio.TaskGroup() as tasks:
        await server._discovering.open(exits)
        assert server._discovering._pool is not None
        server._discovering._pool._pools._retry_s = server._discovering._pool._retry_s = 0.05
        parts = (server._discovering.run(), server._feed.run(), server._insight.run())
        running = [tasks.create_task(part) for part in parts]
        yield server
        for task in running:
            task.cancel()


async def answer(server: Server) -> Picked | NotPicked:
    answer = await server._picker.pick(Pick(HEADERS, BODY))
    if isinstance(answer, Picked) and answer.placement:
        server._picker.release(answer.placement)
    return answer


def are(server: Server, *endpoints: str) -> Callable[[], bool]:
    return lambda: server._view.usable_endpoints() == endpoints


async def test_pods_without_agents_are_served_and_no_redis_is_needed(api: ApiServer) -> None:
    api.put_pool(**POOL)
    for number in range(3):
        api.put(f"pod-{number}", f"10.0.0.{number}")
    api.put("others", "10.0.0.9", labels={"app": "other"})
    async with serving(api) as server:
        await until(are(server, "10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000"))
        first, again = await answer(server), await answer(server)
        assert isinstance(first, Picked)
        assert isinstance(again, Picked)
        assert again.endpoints[0] == first.endpoints[0], "the same prompt, by what was placed before"
        assert server._discovering.unattended == 3
        api.put("pod-1", "10.0.0.1", leaving=True)
        api.put("pod-2", "10.0.0.2", ready=False)
        await until(are(server, "10.0.0.0:8000"))
        api.put("pod-3", "fd00::3")
        await until(are(server, "10.0.0.0:8000", "[fd00::3]:8000"))
    assert {query.get("fieldSelector", "metadata.name=default") for query in api.queries} == {"metadata.name=default"}


async def test_each_target_port_is_an_endpoint_and_another_selector_other_pods(api: ApiServer) -> None:
    api.put_pool(selector={"matchLabels": {"app": "vllm"}}, targetPorts=[{"number": 8000}, {"number": 8001}])
    api.put("a", "10.0.0.1")
    api.put("b", "10.0.0.2", labels={"app": "other", "tier": "x"})
    async with serving(api) as server:
        await until(are(server, "10.0.0.1:8000", "10.0.0.1:8001"))
        api.put_pool(selector={"matchLabels": {"app": "other", "tier": "x"}}, targetPorts=[{"number": 9000}])
        await until(are(server, "10.0.0.2:9000"))


async def test_the_older_api_is_read_where_it_is_asked_for(api: ApiServer) -> None:
    api.put_pool("old", V1ALPHA2, selector={"app": "vllm"}, targetPortNumber=8000, extensionRef={"name": "picker"})
    api.put("a", "10.0.0.1")
    group = V1ALPHA2.partition("/")[0]
    async with serving(api, inference_pool="old", group=group) as server:
        await until(are(server, "10.0.0.1:8000"))


async def test_while_the_api_server_is_away_the_pool_stays_and_the_gauge_says_so(api: ApiServer) -> None:
    api.put_pool(**POOL)
    api.put("a", "10.0.0.1")
    async with serving(api) as server:
        await until(are(server, "10.0.0.1:8000"))
        await until(lambda: bool(api.watchers))
        api.fails = 10_000
        api.put("b", "10.0.0.2", tell=False)
        api.cut()
        await until(lambda: server._degraded()["kubernetes"])
        assert server._view.usable_endpoints() == ("10.0.0.1:8000",)
        assert isinstance(await answer(server), Picked)
        api.fails = 0
        await until(are(server, "10.0.0.1:8000", "10.0.0.2:8000"))
        await until(lambda: not server._degraded()["kubernetes"])


async def test_a_pool_that_is_not_there_changes_nothing_and_is_told_of(api: ApiServer) -> None:
    async with serving(api) as server:
        await until(lambda: server._degraded()["kubernetes"])
        assert server._view.members is None
        api.put("a", "10.0.0.1")
        api.put_pool(**POOL)
        await until(are(server, "10.0.0.1:8000"))
        api.delete("default", kind=V1)
        await until(lambda: server._degraded()["kubernetes"])
        assert server._view.usable_endpoints() == ("10.0.0.1:8000",)
        api.put_pool(selector={"matchLabels": {}}, targetPorts=[{"number": 8000}])
        api.put("b", "10.0.0.2", labels={"any": "pod"})
        assert server._view.usable_endpoints() == ("10.0.0.1:8000",), "no selector is not every pod there is"


async def test_more_endpoints_than_are_allowed_are_left_out(api: ApiServer) -> None:
    api.put_pool(**POOL)
    for number in range(4):
        api.put(f"pod-{number}", f"10.0.0.{number}")
    async with serving(api, max_workers=2) as server:
        await until(are(server, "10.0.0.0:8000", "10.0.0.1:8000"))


async def test_agents_and_the_pool_agree_on_who_is_there(api: ApiServer, redis_server: ValkeyServer) -> None:
    api.put_pool(**POOL)
    api.put("a", "10.0.0.1")
    api.put("b", "10.0.0.2")
    agents = [Agent("10.0.0.1:8000", 1), Agent("10.0.0.3:8000", 3)]
    redis = connect(redis_server.url, KEYS)
    async with serving(api, redis_server.url) as server, asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(beat(agents, redis))
        await until(lambda: len(server._view.roster()) == 3 and server._discovering.unattended == 1)
        assert server._view.usable_endpoints() == ("10.0.0.1:8000", "10.0.0.2:8000")
        assert server._degraded()["workers_outside_pool"]
        assert server._view.slot_of("10.0.0.1:8000", 1) is not None
        agents[0].becomes(agents[0].state.UNHEALTHY)
        await until(are(server, "10.0.0.2:8000"))
        agents[0].becomes(agents[0].state.READY)
        api.put("c", "10.0.0.3")
        await until(are(server, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"))
        assert not server._degraded()["workers_outside_pool"]
        assert server._discovering.unattended == 1
        beating.cancel()
    await redis.aclose()


async def beat(agents: list[Agent], redis: Any) -> None:
    while True:
        for agent in agents:
            await agent.beat(redis)
        await asyncio.sleep(0.05)


async def test_without_a_way_into_a_cluster_it_says_what_to_do() -> None:
    server = Server(Config(redis=NO_REDIS, kubernetes=KubernetesPool()), ConfigSource())
    async with contextlib.AsyncExitStack() as exits:
        with pytest.raises(ConfigError, match="set kubeconfig"):
            await server._discovering.open(exits)
