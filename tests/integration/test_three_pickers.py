"""Three pickers that share one Redis place the same traffic as one picker does."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest

from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import SENTENCE, until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]
WORKERS = 4
USERS = 8
TURNS = 5


async def hit_rate(pickers: int) -> float:
    """Share of prompt tokens that engines found cached, of conversations that all begin alike."""
    tokens: Counter[str] = Counter()
    async with Stack(Plan(workers=WORKERS, pickers=pickers, worker=("--speed", "20"))) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client, asyncio.TaskGroup() as tasks:
            for number in range(USERS):
                tasks.create_task(_converse(client, number, tokens))
        await _all_took_part(stack, pickers)
    return tokens["cached_tokens"] / tokens["prompt_tokens"]


async def _all_took_part(stack: Stack, pickers: int) -> None:
    routed = 'picker_requests_total{reason="",verdict="route"}'
    shares = [(await stack.metrics(number)).get(routed, 0) for number in range(pickers)]
    assert min(shares) > USERS * TURNS / pickers / 4, shares


async def _converse(client: httpx.AsyncClient, number: int, tokens: Counter[str]) -> None:
    messages = [{"role": "system", "content": SENTENCE * 20}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"user {number}, turn {turn}. {SENTENCE * 20}"})
        body = {"model": MODEL, "messages": messages, "max_tokens": 8}
        answer = (await client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        tokens["prompt_tokens"] += answer["usage"]["prompt_tokens"]
        tokens["cached_tokens"] += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        await asyncio.sleep(0.2)


async def burst(pickers: int, requests: int = 200) -> list[int]:
    """How many of as many equal requests at once each worker got, the most first."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": SENTENCE * 80}], "max_tokens": 16}
    async with Stack(Plan(workers=WORKERS, pickers=pickers, worker=("--speed", "4"))) as stack:
        limits = httpx.Limits(max_connections=requests)
        async with httpx.AsyncClient(base_url=stack.url, timeout=100, limits=limits) as client:
            await until(lambda: stack.metric_is("picker_peers", pickers - 1))
            replies = await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for _ in range(requests)))
    counts = Counter(reply.raise_for_status().headers["x-worker"] for reply in replies)
    return sorted((counts[f"w{n}"] for n in range(WORKERS)), reverse=True)


async def test_three_pickers_hit_as_much_as_one() -> None:
    one, three = await hit_rate(1), await hit_rate(3)
    assert three > one - 0.02, (one, three)


async def test_three_pickers_spread_a_burst_of_equal_requests_as_one_does() -> None:
    """One picker's own bursts differ by a fifth from run to run; without the others' sums the worst is far beyond."""
    one, three = await burst(1), await burst(3)
    assert three[0] <= 1.5 * one[0], (one, three)
    assert three[-1] > 0, (one, three)
