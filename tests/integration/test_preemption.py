"""Requests on their way are cut for a higher class: what a real Envoy makes of it, and what the picker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import random

import httpx
import pytest
import pytest_asyncio

from picker.extproc.events import NotPicked
from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.ext_proc import TRANSPORTS
from tests.integration.real_envoy import HANGING, LEFT, MODES, RealEnvoy, real_envoy
from tests.integration.traffic import SENTENCE, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
REFUSAL = NotPicked(429, "preempted", "Later.", 2)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TRANSPORTS)
async def envoy(request: pytest.FixtureRequest) -> AsyncIterator[RealEnvoy]:
    async with real_envoy(request.param) as running:
        yield running


async def post(url: str, name: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(url, json={"model": "m"}, params={"name": name})


async def holds(names: list[str], name: str) -> bool:
    return name in names


@pytest.mark.parametrize("mode", MODES)
async def test_envoy_refuses_a_request_that_is_with_a_worker_and_lets_go_of_the_worker(
    envoy: RealEnvoy, mode: str, request: pytest.FixtureRequest
) -> None:
    name = f"{request.node.name} {random()}"
    placed = envoy.picker.placed
    async with asyncio.TaskGroup() as tasks:
        asked = tasks.create_task(post(f"{envoy.urls[mode]}/hang", name))
        await until(lambda: holds(HANGING, name))
        assert envoy.picker.placed == placed + 1
        envoy.service.cut(envoy.picker.placed, REFUSAL)
    response = asked.result()
    assert (response.status_code, response.headers["x-picker-reason"]) == (429, "preempted")
    assert response.headers["retry-after"] == "2"
    assert response.json()["error"]["reason"] == "preempted"
    # The worker learns it, and no other is tried.
    await until(lambda: holds(LEFT, name))
    assert HANGING.count(name) == 1
    await envoy.idle()


@pytest.mark.parametrize("mode", ["buffered", "full-duplex"])
async def test_a_response_that_has_begun_comes_whole(envoy: RealEnvoy, mode: str) -> None:
    async with (
        httpx.AsyncClient(timeout=20) as client,
        client.stream("POST", f"{envoy.urls[mode]}/stream?pieces=300", json={}) as response,
    ):
        text = ""
        async for piece in response.aiter_text():
            text += piece
            envoy.service.cut(envoy.picker.placed, REFUSAL)
    assert text.count("data: ") == 300
    await envoy.idle()


SLOW = ("--profile", "8b", "--speed", "0.01")
CLASSES = [
    {"name": "interactive", "priority": 100},
    {"name": "default"},
    {"name": "batch", "priority": -100, "preempted_after_s": 0.2},
]


async def ask(client: httpx.AsyncClient, objective: str, sentences: int) -> httpx.Response:
    body = {"model": MODEL, "prompt": f"{objective} {SENTENCE * sentences}", "max_tokens": 2}
    return await client.post("/v1/completions", json=body, headers={"x-gateway-inference-objective": objective})


async def test_a_batch_request_gives_way_to_an_interactive_one_and_to_nobody_else() -> None:
    plan = Plan(workers=1, worker=SLOW, picker={"admission": {"classes": CLASSES, "room": {"tokens": 1}}})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        # That the proxy tells of response headers is known by the first of them.
        assert (await ask(client, "default", 1)).status_code == 200
        async with asyncio.TaskGroup() as tasks:
            batch = tasks.create_task(ask(client, "batch", 60))
            await until(lambda: stack.metric_is("picker_inflight_requests", 1))
            more = tasks.create_task(ask(client, "batch", 2))
            await until(lambda: stack.metric_is("picker_queue_requests", 1))
            await asyncio.sleep(0.5)
            assert not batch.done()
            interactive = tasks.create_task(ask(client, "interactive", 1))
        assert (batch.result().status_code, batch.result().headers["x-picker-reason"]) == (429, "preempted")
        assert [each.result().status_code for each in (interactive, more)] == [200, 200]
        assert (await stack.metrics())["picker_preempted_total"] == 1
        for name in ("streams", "inflight_requests", "inflight_prefill_seconds", "queue_requests"):
            await until(lambda name=name: stack.metric_is(f"picker_{name}", 0))  # type: ignore[misc]
