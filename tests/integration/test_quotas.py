"""Quotas of several pickers, through a real Redis."""

from __future__ import annotations

import asyncio
import time

import pytest

from picker.admission.quotas import MOST_BUCKETS, Quotas
from picker.admission.settings import AdmissionSettings, Quota
from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.quota_sharing import QuotaSharing
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.spending import Spending
from picker.simulation.valkey import ValkeyServer
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import fleet

KEYS = Keys("pool")
RATE = Quota(tenants=("a", "b"), requests_per_s=10.0, burst_s=2.0)


def let_in(quotas: Quotas, count: int, now: float, tenant: str = "a", tokens: int = 1) -> int:
    return sum(not quotas.take(tenant, "m", tokens, now)[1] for _ in range(count))


def test_a_burst_and_then_the_rate() -> None:
    quotas = Quotas([RATE])
    assert let_in(quotas, 100, 0.0) == 20
    assert sum(let_in(quotas, 5, second / 10) for second in range(1, 101)) == pytest.approx(100, abs=1)
    # Tenants do not share, and who is not named has no limit.
    assert let_in(quotas, 100, 10.0, "b") == 20
    assert let_in(quotas, 1000, 10.0, "c") == 1000


def test_a_request_larger_than_the_burst_is_served_and_paid_for() -> None:
    quotas = Quotas([Quota(tokens_per_s=100.0, burst_s=1.0)])
    assert let_in(quotas, 1, 0.0, tokens=1000) == 1
    _, wait_s = quotas.take("a", "m", 1, 0.0)
    assert wait_s == pytest.approx(9.0)
    assert let_in(quotas, 1, 8.9) == 0
    assert let_in(quotas, 1, 9.1) == 1


def test_what_was_not_served_is_given_back() -> None:
    quotas = Quotas([RATE])
    charges, _ = quotas.take("a", "m", 1, 0.0)
    quotas.give_back(charges)
    assert let_in(quotas, 100, 0.0) == 20
    assert quotas.spent() == {next(iter(quotas._buckets)): 20.0}


def test_memory_is_bounded() -> None:
    quotas = Quotas([Quota(requests_per_s=1.0)])
    for number in range(MOST_BUCKETS + 100):
        quotas.take(f"id {number}", "m", 1, 0.0)
    assert len(quotas._buckets) == MOST_BUCKETS


async def test_pickers_together_keep_a_quota_within_a_burst_each(redis_server: ValkeyServer) -> None:
    client = connect(redis_server.url, KEYS)
    pickers = [Quotas([Quota(requests_per_s=50.0, burst_s=0.5)]) for _ in range(3)]
    sharing = [QuotaSharing(each, Spending(client, KEYS), every_s=0.05) for each in pickers]
    count, began = 0, time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(each.run()) for each in sharing]
        while time.monotonic() - began < 4.0:
            count += sum(let_in(each, 5, time.monotonic()) for each in pickers)
            await asyncio.sleep(0.01)
        for each in running:
            each.cancel()
    seconds = time.monotonic() - began
    assert 50 * seconds * 0.8 <= count <= 50 * seconds + 3 * 25 + 50 * 0.5
    await client.aclose()


async def test_without_redis_a_quota_is_each_pickers_own_and_refuses_nobody_for_that(
    redis_server: ValkeyServer,
) -> None:
    client = connect(redis_server.url, KEYS)
    one, other = Quotas([RATE]), Quotas([RATE])
    ticks = [QuotaSharing(each, Spending(client, KEYS)) for each in (one, other)]

    async def tick() -> None:
        for each in ticks:
            await each._tick()

    assert (let_in(one, 5, 0.0), let_in(other, 1, 0.0)) == (5, 1)
    await tick()
    redis_server.pause()
    assert let_in(one, 10, 0.0) == 10
    assert let_in(other, 100, 0.0) == 19
    await tick()
    redis_server.resume()
    [bucket] = other._buckets.values()
    async with asyncio.timeout(20):
        # What could not be told in the meantime is told now.
        while bucket.level > -9:
            await tick()
            await asyncio.sleep(0.05)
    await client.aclose()


async def test_who_is_over_its_quota_is_told_when_to_come_back() -> None:
    settings = AdmissionSettings(quotas=(Quota(tokens_per_s=100.0, burst_s=1.0),))
    picker = Picker(Config(admission=settings), fleet(1), PromptReader({}), Metrics(), lambda: False)
    wanted = Pick(
        {":method": "POST", ":path": "/v1/completions"}, b'{"model": "llama", "prompt": "x", "max_tokens": 1000}'
    )
    first, second = await picker.pick(wanted), await picker.pick(wanted)
    assert isinstance(first, Picked) and isinstance(second, NotPicked)
    assert (second.status, second.reason) == (429, "quota-exceeded")
    assert second.retry_after_s >= 1
    picker.release(first.placement)
    picker.close()
