"""The agent beside engines other than vLLM, whose interfaces are doubles: HTTP, ZMQ and Redis are real."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from picker.agent.config import WorkerConfig
from picker.prompts import chain
from picker.redisview.records import LoadRecord, WorkerState
from picker.simulation.process import free_ports
from picker.simulation.valkey import ValkeyServer
from tests.integration.engine_doubles import Events, Pages, serving, sglang_pages, sglang_store, trtllm_pages
from tests.integration.test_agent import Rig, agent, ready
from tests.waiting import until

TOKENS = [n * 7 % 1990 + 5 for n in range(200)]
BLOCKS = set(chain.index_blocks(chain.scope("m"), TOKENS))


@pytest.fixture
def events() -> Any:
    events = Events()
    yield events
    events.close()


def announcing(events: Events, **more: Any) -> dict[str, Any]:
    pages = sglang_pages()
    described = {"publisher": "zmq", "endpoint_host": "127.0.0.1", "endpoint_port_base": events.port, **more}
    pages["/server_info"] = {"version": "0.5.23", "kv_events": described | {"endpoint_host": "*"}}
    return pages


def worker(server: Pages, **more: Any) -> WorkerConfig:
    return WorkerConfig(url=server.url, name="w0", **more)


async def publishes(rig: Rig, events: Events, *batch: dict[str, Any]) -> None:
    """A subscription takes effect some time after it is made: until then nothing arrives."""
    await until(lambda: (events.publish(), rig.of("w0").subscriber.batches)[1])
    events.publish(*batch)


async def blocks_are(rig: Rig, expected: set[int]) -> None:
    async def hold() -> bool:
        return await rig.blocks("w0") == expected

    await until(hold)


async def test_sglang_is_recognised_and_its_pages_of_one_token_are_published_as_index_blocks(
    redis_server: ValkeyServer, events: Events
) -> None:
    async with serving(announcing(events)) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        await publishes(rig, events, *sglang_store(TOKENS))
        await blocks_are(rig, BLOCKS)
        record = await rig.record("w0")
        assert (record.engine, record.version, record.models) == ("sglang", "0.5.23", ("m",))
        assert (record.publishes_kv, record.context_limit_tokens) == (True, 8192)


async def test_sglang_is_not_asked_for_its_costly_health_again_and_again(redis_server: ValkeyServer) -> None:
    async with serving(sglang_pages()) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        await until(lambda: server.asked["/metrics"] >= 10)
        assert server.asked["/health"] == 1


async def test_an_engine_without_events_says_so(redis_server: ValkeyServer) -> None:
    async with serving(sglang_pages()) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        record = await rig.record("w0")
        assert (record.publishes_kv, record.kv_capacity_tokens) == (False, 20_000)
        assert rig.of("w0").subscriber is None


async def test_load_reports_of_an_engine_are_published_as_they_come(redis_server: ValkeyServer, events: Events) -> None:
    reports = Events()
    try:
        pages = announcing(events, load_endpoint_port_base=reports.port)
        async with serving(pages) as server, agent(redis_server, worker(server)) as rig:

            async def is_reported() -> bool:
                reports.send(b"load", msgspec.msgpack.encode(["LoadStat", 7, 3, 500, 1000, 0, 4321]))
                load = await rig.load("w0")
                return load is not None and (load.running, load.waiting, load.waiting_tokens) == (7, 3, 4321)

            await until(is_reported)
    finally:
        reports.close()


async def test_an_engine_that_connects_to_us_is_followed(redis_server: ValkeyServer) -> None:
    (port,) = free_ports(1)
    events = Events(connects=f"tcp://127.0.0.1:{port}")
    try:
        async with serving(sglang_pages()) as server:
            async with agent(redis_server, worker(server, kv_events=f"tcp://*:{port}")) as rig:
                await until(ready(rig))
                await publishes(rig, events, *sglang_store(TOKENS, 64))
                await blocks_are(rig, BLOCKS)
    finally:
        events.close()


async def test_an_address_that_cannot_be_bound_leaves_a_worker_without_events(
    redis_server: ValkeyServer, events: Events
) -> None:
    taken = f"tcp://*:{events.port}"
    async with serving(sglang_pages()) as server, agent(redis_server, worker(server, kv_events=taken)) as rig:

        async def publishes_none() -> bool:
            record = await rig.record("w0")
            return record.state is WorkerState.READY and not record.publishes_kv

        await until(publishes_none)
        seen = rig.of("w0").epoch
        await asyncio.sleep(0.3)
        assert rig.of("w0").epoch == seen


class TrtEvents:
    """Hands out each event once."""

    def __init__(self) -> None:
        self.waiting: list[dict[str, Any]] = []
        self.number = 0

    def add(self, **data: Any) -> None:
        self.waiting.append({"event_id": self.number, "window_size": 4096, "data": data})
        self.number += 1

    def store(self, tokens: list[int], size: int = 32) -> None:
        cuts = [tokens[at : at + size] for at in range(0, len(tokens), size)]
        blocks = [
            {"block_hash": hash(tuple(tokens[: (n + 1) * size])), "tokens": [{"token_id": t} for t in cut]}
            for n, cut in enumerate(cuts)
        ]
        self.add(type="stored", parent_hash=None, blocks=blocks)

    def drain(self) -> list[dict[str, Any]]:
        handed, self.waiting = self.waiting, []
        return handed


async def test_tensorrt_llm_is_polled_for_its_events(redis_server: ValkeyServer) -> None:
    source = TrtEvents()
    async with serving(trtllm_pages(source.drain)) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        record = await rig.record("w0")
        assert (record.engine, record.version, record.publishes_kv) == ("trtllm", "1.3.0", False)
        source.add(type="created", num_blocks_per_cache_level=[100, 0])
        source.store(TOKENS)
        await blocks_are(rig, BLOCKS)

        async def says_so() -> bool:
            return (await rig.record("w0")).publishes_kv

        await until(says_so)


async def test_events_that_somebody_else_has_taken_begin_a_new_epoch(redis_server: ValkeyServer) -> None:
    source = TrtEvents()
    async with serving(trtllm_pages(source.drain)) as server, agent(redis_server, worker(server)) as rig:
        source.store(TOKENS)
        await until(lambda: "w0" in rig.agent.statistics() and rig.of("w0").blocks.published == 3)
        epoch = rig.of("w0").epoch
        source.number += 1
        source.store(TOKENS[:64])
        await until(lambda: rig.of("w0").epoch != epoch and rig.of("w0").blocks.published == 1)
        assert rig.of("w0").subscriber.lost == 1  # type: ignore[union-attr]


async def test_numbers_that_begin_anew_are_a_restart(redis_server: ValkeyServer) -> None:
    source = TrtEvents()
    async with serving(trtllm_pages(source.drain)) as server, agent(redis_server, worker(server)) as rig:
        source.store(TOKENS)
        await until(lambda: "w0" in rig.agent.statistics() and rig.of("w0").blocks.published == 3)
        source.number = 0
        source.add(type="created", num_blocks_per_cache_level=[100, 0])
        source.store(TOKENS[:64])
        await until(lambda: rig.of("w0").blocks.published == 1)
        assert rig.of("w0").subscriber.restarts == 1  # type: ignore[union-attr]


async def test_tensorrt_llms_idle_engine_is_not_taken_for_a_stalled_one(redis_server: ValkeyServer) -> None:
    pages = trtllm_pages(list)
    busy = [{"iter": 3, "numActiveRequests": 2, "numQueuedRequests": 0}]
    answers = iter([busy])
    pages["/metrics"] = lambda: next(answers, [])
    async with serving(pages) as server, agent(redis_server, worker(server), stall_after_s=0.3) as rig:
        await until(ready(rig))
        await until(lambda: server.asked["/metrics"] > 20)
        assert rig.of("w0").state is WorkerState.READY
        load = await rig.load("w0")
        assert load is not None and load.running == 0


async def test_a_key_is_sent_to_servers_that_want_one(redis_server: ValkeyServer, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    async with serving(sglang_pages()) as server:
        async with agent(redis_server, worker(server, api_key_file=str(tmp_path / "key"))) as rig:
            await until(ready(rig))
    assert server.headers["authorization"] == "Bearer secret"


async def test_a_server_without_a_health_page_goes_by_its_models(redis_server: ValkeyServer) -> None:
    pages = {"/v1/models": {"data": [{"id": "m", "owned_by": "me"}]}}
    async with serving(pages) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        assert server.asked["/health"] > 0


async def test_a_paused_engine_is_not_ready_and_its_cache_counts_as_empty(
    redis_server: ValkeyServer, events: Events
) -> None:
    pages = sglang_pages() | {
        "/health": 200,
        "/v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]},
        "/metrics": 'vllm:num_requests_running{engine="0"} 0.0\n',
        "/version": {"version": "0.32.0"},
        "/kv_event_sources": {"0": {"endpoint": f"tcp://*:{events.port}"}},
        "/is_paused": {"is_paused": False},
    }
    async with serving(pages) as server, agent(redis_server, worker(server)) as rig:
        await until(ready(rig))
        await publishes(rig, events, *sglang_store(TOKENS, 64))
        await blocks_are(rig, BLOCKS)
        server.pages["/is_paused"] = {"is_paused": True}
        await until(lambda: rig.of("w0").state is WorkerState.UNHEALTHY)
        assert rig.of("w0").reason == "the engine is paused"
        assert rig.of("w0").blocks.published == 0
        server.pages["/is_paused"] = {"is_paused": False}
        await until(ready(rig))


def test_load_records_have_room_for_all_counters() -> None:
    load = LoadRecord(1, 1, 1, first_tokens=5, errors=6)
    assert LoadRecord.unpack(load.pack()) == load
