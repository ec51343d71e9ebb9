"""Parts die while traffic flows; no client notices, and things are as before by themselves."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from picker.simulation.stack import Plan, Stack
from tests.integration.traffic import Conversation, more, steady, until

pytestmark = pytest.mark.envoy
FAST = ("--speed", "20")


async def test_a_worker_dies_and_no_client_sees_an_error() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack, steady(stack.url) as traffic:
        await more(traffic, 30)
        assert "w1" in traffic.workers
        stack.workers[1].kill()
        await until(lambda: stack.metric_is("picker_workers_ready", 2))
        settled = len(traffic.workers)
        await more(traffic, 30)
        # The one that was picked just before may still be retried elsewhere, but none is sent to the dead worker.
        assert "w1" not in traffic.workers[settled + 4 :]
        await stack.restart_worker(1)
        await until(lambda: stack.metric_is("picker_workers_ready", 3))
        settled = len(traffic.workers)
        await more(traffic, 60)
        assert "w1" in traffic.workers[settled:]
        assert traffic.failures == []


async def test_the_picker_dies_and_envoy_goes_on_alone() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack, steady(stack.url) as traffic:
        await more(traffic, 30)
        stack.picker.kill()
        await more(traffic, 40)
        await stack.start_picker()
        routed = 'picker_requests_total{reason="",verdict="route"}'
        await more(traffic, 30)
        assert (await stack.metrics())[routed] > 0
        assert traffic.failures == []


async def test_with_the_fail_closed_configuration_clients_get_503_when_the_picker_is_gone() -> None:
    async with Stack(Plan(workers=2, envoy="fail-closed", worker=FAST)) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=10) as client:
            assert (await Conversation("before").turn(client)).status_code == 200
            stack.picker.kill()
            assert (await Conversation("without").turn(client)).status_code == 503
            assert (await client.get("/v1/models")).status_code == 503
            await stack.start_picker()
            await until(lambda: _works(client))


async def test_redis_dies_and_returns_empty_and_conversations_stay_where_they_are() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack:
        async with steady(stack.url) as traffic, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
            conversations = [Conversation(f"conversation {i}", sentences=60) for i in range(4)]
            for conversation in conversations:
                await conversation.turn(client)
            await until(lambda: _knows_blocks(stack, 20))
            await stack.valkey.kill()
            await until(lambda: stack.metric_is("picker_redis_connected", 0))
            for conversation in conversations:
                await conversation.turn(client)
            await more(traffic, 30)
            await stack.valkey.start()
            await until(lambda: stack.metric_is("picker_redis_connected", 1))
            await until(lambda: stack.metric_is("picker_dirty_slots", 0))
            assert await _knows_blocks(stack, 20)
            for conversation in conversations:
                await conversation.turn(client)
                assert len(set(conversation.workers)) == 1, conversation.workers
            assert await stack.metric_is("picker_workers_ready", 3)
            assert traffic.failures == []


async def test_a_new_picker_learns_from_redis_what_the_workers_hold() -> None:
    async with Stack(Plan(workers=3, worker=FAST)) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
            conversations = [Conversation(f"conversation {i}", sentences=60) for i in range(4)]
            for conversation in conversations:
                await conversation.turn(client)
            await stack.picker.stop()
            await stack.start_picker()
            await until(lambda: stack.metric_is("picker_dirty_slots", 0))
            for conversation in conversations:
                await conversation.turn(client)
                assert len(set(conversation.workers)) == 1, conversation.workers


async def test_he_17_a_drain_ends_no_request_that_is_under_way() -> None:
    async with Stack(Plan(workers=2, envoy="fail-closed", worker=("--speed", "2"))) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client, asyncio.TaskGroup() as tasks:
            answer = tasks.create_task(Conversation("long").turn(client, max_tokens=60))
            await until(lambda: stack.metric_is("picker_inflight_requests", 1))
            await stack.picker.stop(grace_s=60)
            assert not stack.picker.is_running
        assert answer.result().status_code == 200


async def _knows_blocks(stack: Stack, at_least: int) -> bool:
    return (await stack.metrics())["picker_index_blocks"] >= at_least


async def _works(client: httpx.AsyncClient) -> bool:
    return (await client.get("/v1/models")).status_code == 200
