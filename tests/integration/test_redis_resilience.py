"""Agents, sentinels' primaries and cluster nodes die, and Redis freezes, while traffic flows: no client notices."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from redis.crc import key_slot

from picker.redisview.keys import Keys
from picker.simulation.stack import Plan, Stack
from tests.integration import redis_servers
from tests.integration.redis_servers import BINARIES
from tests.integration.traffic import Conversation, more, steady, until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]
FAST = ("--speed", "20")


async def test_an_agent_dies_and_comes_back() -> None:
    """It is the only one: that all fall silent at once says nothing about the workers."""
    async with Stack(Plan(workers=3, worker=FAST)) as stack, steady(stack.url) as traffic:
        await more(traffic, 30)
        stack.agent.kill()
        # Longer than what makes a worker stale whose agent alone is silent.
        await asyncio.sleep(7.0)
        await more(traffic, 40)
        stack.agent.start()
        await until(lambda: stack.metric_is("picker_workers_ready", 3))
        await until(lambda: stack.metric_is("picker_dirty_slots", 0))
        await more(traffic, 30)
        assert traffic.failures == []


async def test_an_agent_that_comes_back_calls_no_worker_unready() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack, Redis.from_url(stack.valkey.url) as redis:
        keys, told = {Keys("default").worker(f"w{number}") for number in range(3)}, set[str]()
        stack.agent.kill()
        async with redis.monitor() as monitor, asyncio.timeout(30):
            stack.agent.start()
            async for heard in monitor.listen():
                words = heard["command"].split()
                if words[0] == "HSET" and words[1] in keys:
                    assert "ready" in heard["command"], "nothing is said of a worker before it was looked at"
                    told.add(words[1])
                if told == keys:
                    break


async def test_a_primary_dies_behind_sentinels(tmp_path: Path) -> None:
    async with redis_servers.sentinels(BINARIES[0], tmp_path) as group:
        async with Stack(Plan(workers=3, worker=FAST, redis=group.url)) as stack, steady(stack.url) as traffic:
            await more(traffic, 30)
            (await group.primary()).process.kill()
            await until(lambda: stack.metric_is("picker_redis_connected", 0))
            await until(lambda: stack.metric_is("picker_redis_connected", 1))
            await more(traffic, 30)
            await _is_right_again(stack)
            assert traffic.failures == []


async def test_the_node_of_a_cluster_that_has_the_pool_dies_and_comes_back(tmp_path: Path) -> None:
    async with redis_servers.cluster(BINARIES[0], tmp_path) as group:
        async with Stack(Plan(workers=3, worker=FAST, redis=group.url)) as stack, steady(stack.url) as traffic:
            await more(traffic, 30)
            node = await group.owner(key_slot(Keys("default").load.encode()))
            node.process.kill()
            await until(lambda: stack.metric_is("picker_redis_connected", 0))
            await more(traffic, 40)
            await node.start()
            await until(lambda: stack.metric_is("picker_redis_connected", 1))
            await more(traffic, 30)
            await _is_right_again(stack)
            assert traffic.failures == []


async def _is_right_again(stack: Stack) -> None:
    await until(lambda: stack.metric_is("picker_workers_ready", 3))
    await until(lambda: stack.metric_is("picker_dirty_slots", 0))
    await until(lambda: stack.metric_is("picker_view_lag_events", 0))


async def test_a_frozen_redis_makes_no_request_slower() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
            warm, thawed = await _seconds(client, "warm"), await _seconds(client, "before")
            stack.valkey.pause()
            first = await _seconds(client, "just frozen")
            await until(lambda: stack.metric_is("picker_redis_connected", 0))
            frozen = await _seconds(client, "frozen")
            stack.valkey.resume()
            await until(lambda: stack.metric_is("picker_redis_connected", 1))
    usual = statistics.median([*warm, *thawed])
    for seconds in (first, frozen):
        # Of the same machine in the same minute; a wait for Redis would be a deadline of half a second or more.
        assert statistics.median(seconds) < 2 * usual + 0.05, (usual, seconds)


async def _seconds(client: httpx.AsyncClient, name: str, requests: int = 25) -> list[float]:
    taken = []
    for number in range(requests):
        conversation = Conversation(f"{name} {number}")
        started = time.perf_counter()
        assert (await conversation.turn(client)).status_code == 200
        taken.append(time.perf_counter() - started)
    return taken
