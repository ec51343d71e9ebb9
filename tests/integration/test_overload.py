"""More than the workers can do, through a real Envoy: who waits, who is refused, and what is left behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter

import httpx
import pytest

from benchmarks.common.memory import resident_bytes
from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import SENTENCE, until

pytestmark = pytest.mark.envoy
SLOW = ("--profile", "8b", "--speed", "0.1")
ADMISSION = {
    "classes": [
        {"name": "interactive", "priority": 100},
        {"name": "default", "max_wait_s": 3.0, "share": 0.1},
        {"name": "batch", "priority": -100, "fill": 0.5},
    ],
    "total": {"requests": 20},
    "room": {"tokens": 1024},
}
CAUSES = {"queue-full", "queue-timeout", "deadline-unreachable"}


def body(number: int, sentences: int = 30, answer: int = 4) -> dict[str, object]:
    return {"model": MODEL, "prompt": f"{number} {SENTENCE * sentences}", "max_tokens": answer}


async def ask(client: httpx.AsyncClient, number: int, **rest: int) -> httpx.Response:
    return await client.post("/v1/completions", json=body(number, **rest))


async def is_empty(stack: Stack) -> bool:
    metrics = await stack.metrics()
    names = ("streams", "inflight_requests", "inflight_prefill_seconds", "held_body_bytes", "queue_requests")
    return not any(metrics[f"picker_{name}"] for name in names)


async def offer(client: httpx.AsyncClient, a_second: float, seconds: float) -> list[httpx.Response]:
    """Requests at this rate, whatever becomes of them."""
    began, answers = time.monotonic(), []
    async with asyncio.TaskGroup() as tasks:
        for number in range(int(a_second * seconds)):
            await asyncio.sleep(max(0.0, began + number / a_second - time.monotonic()))
            answers.append(tasks.create_task(ask(client, number)))
    return [each.result() for each in answers]


@pytest.mark.parametrize("envoy", ["fail-open", "full-duplex"])
async def test_far_beyond_capacity_each_request_is_answered_once_and_nothing_stays(envoy: str) -> None:
    plan = Plan(workers=2, envoy=envoy, worker=SLOW, picker={"admission": ADMISSION})
    limits = httpx.Limits(max_connections=None)
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60, limits=limits) as client:
        await offer(client, 5, 1)
        before = resident_bytes(stack.picker.pid)
        answers = await offer(client, 40, 8)
        statuses = Counter(each.status_code for each in answers)
        assert set(statuses) == {200, 429}, statuses
        # The workers went on all the time, at what they can do.
        assert statuses[200] > 20
        for refused in (each for each in answers if each.status_code == 429):
            assert refused.headers["x-picker-reason"] in CAUSES
            assert refused.json()["error"]["reason"] == refused.headers["x-picker-reason"]
            assert 1 <= int(refused.headers.get("retry-after", "1")) <= 30
        await until(lambda: is_empty(stack))
        metrics = await stack.metrics()
        assert metrics.get('picker_requests_total{reason="",verdict="route"}', 0) >= statuses[200]
        assert (resident_bytes(stack.picker.pid) - before) / 2**20 < 40


async def test_envoy_waits_as_long_as_the_picker_lets_a_request_wait() -> None:
    admission = {"room": {"tokens": 1}}
    plan = Plan(workers=1, worker=("--profile", "8b", "--speed", "0.01"), picker={"admission": admission})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(client, 1, sentences=110))
            await until(lambda: stack.metric_is("picker_inflight_requests", 1))
            second = tasks.create_task(ask(client, 2, sentences=1))
            await until(lambda: stack.metric_is("picker_queue_requests", 1))
        assert (first.result().status_code, second.result().status_code) == (200, 200)
        metrics = await stack.metrics()
        # Longer than Envoy's message timeout, which only we can have lengthened.
        assert metrics['picker_queue_wait_seconds_sum{class="default"}'] > 5
        assert metrics['picker_requests_total{reason="",verdict="route"}'] == 2


async def test_a_drain_sends_those_who_wait_away_and_lets_the_others_finish() -> None:
    admission = {"room": {"tokens": 1}}
    plan = Plan(workers=1, worker=("--profile", "8b", "--speed", "0.01"), picker={"admission": admission})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(ask(client, 1, sentences=60))
            await until(lambda: stack.metric_is("picker_inflight_requests", 1))
            waiting = [tasks.create_task(ask(client, number)) for number in range(10)]
            await until(lambda: stack.metric_is("picker_queue_requests", 10))
            stack.picker.signal(signal.SIGTERM)
        assert first.result().status_code == 200
        for each in waiting:
            response = each.result()
            assert (response.status_code, response.headers["x-picker-reason"]) == (503, "shutting-down")
