"""A worker that dies in the middle of an answer: what cannot be mended is passed on as it is, and counted."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import Conversation, until

pytestmark = pytest.mark.envoy


async def test_a_stream_that_has_begun_breaks_and_the_books_are_zero() -> None:
    body = {"model": MODEL, "prompt": "Tell me a long story. " * 20, "max_tokens": 400, "stream": True}
    async with Stack(Plan(workers=2)) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:

        async def listen() -> int:
            chunks = 0
            async with client.stream("POST", "/v1/completions", json=body) as response:
                assert response.status_code == 200
                async for _ in response.aiter_lines():
                    chunks += 1
                    begun.set()
            return chunks

        async with asyncio.TaskGroup() as tasks:
            begun = asyncio.Event()
            listening = tasks.create_task(_broken(listen()))
            await begun.wait()
            for worker in stack.workers:
                worker.kill()
            # Not an answer that looks whole: the connection, or the chunked body, ends without its end.
            assert await listening
        for number in range(2):
            await stack.restart_worker(number)
        await until(lambda: stack.metric_is("picker_workers_ready", 2))
        assert (await Conversation("afterwards").turn(client)).status_code == 200
        await until(lambda: stack.metric_is("picker_streams", 0))
        metrics = await stack.metrics()
        assert metrics["picker_inflight_requests"] == 0
        assert metrics["picker_inflight_prefill_seconds"] == pytest.approx(0, abs=1e-6)

        await until(lambda: stack.metric_is("picker_broken_responses_total", 1))


async def test_a_client_that_leaves_in_the_middle_has_cancelled() -> None:
    body = {"model": MODEL, "prompt": "Tell me a long story. " * 20, "max_tokens": 400, "stream": True}
    async with Stack(Plan(workers=2)) as stack, httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break

        async def ended() -> dict[str, float]:
            samples = (await stack.metrics()).items()
            return {key: value for key, value in samples if key.startswith("picker_ended_requests_total") and value}

        async def is_counted() -> bool:
            return bool(await ended())

        await until(is_counted)
        [(labels, count)] = (await ended()).items()
        assert 'end="cancelled"' in labels and count == 1


async def _broken(listening: object) -> bool:
    try:
        await listening  # type: ignore[misc]
    except httpx.HTTPError:
        return True
    return False


async def test_a_worker_whose_answers_break_off_is_left_out() -> None:
    async with Stack(Plan(workers=2, worker=("--speed", "20"))) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=60) as client:
            await client.post(f"http://{stack.endpoints[0]}/fault", json={"kind": "break"})

            async def is_left_out() -> bool:
                body = {"model": MODEL, "prompt": "Hello", "max_tokens": 2, "stream": True}
                await _broken(client.post("/v1/completions", json=body))
                return await stack.metric_is('picker_degraded{mode="breakers_open"}', 1)

            await until(is_left_out)
            answered = [(await Conversation(f"chat {number}").turn(client)).status_code for number in range(10)]
            # One may have been the one that tries.
            assert answered.count(200) >= 9
