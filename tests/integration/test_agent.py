"""The agent from end to end: simulated workers with vLLM's interfaces on one side, a real Redis on the other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from picker.agent.config import AgentConfig, WorkerConfig
from picker.agent.engine import Engine, EngineSettings, Reach
from picker.agent.engines.kind import EventSource
from picker.agent.service import Agent
from picker.agent.worker import AgentSettings, WorkerStatistics
from picker.prompts import chain
from picker.redisview.keys import Keys
from picker.redisview.records import KvEvent, KvOp, LoadRecord, Snapshot, WorkerRecord, WorkerState
from picker.simulation.valkey import ValkeyServer
from picker.simulation.worker import Settings, SimulatedWorker
from tests.waiting import until

MODEL = "tiny-llama"
KEYS = Keys("default")
PROMPT = [n * 7 % 1990 + 5 for n in range(320)]


class Rig:
    """An agent over `workers`, and what Redis says of them."""

    def __init__(self, agent: Agent, redis: Redis) -> None:
        self.agent = agent
        self.redis = redis

    def of(self, name: str) -> WorkerStatistics:
        return self.agent.statistics()[name]

    async def state(self, name: str) -> WorkerState | None:
        return (await self.record(name)).state

    async def record(self, name: str) -> WorkerRecord:
        fields: dict[bytes, bytes] = await self.redis.hgetall(KEYS.worker(name))  # type: ignore[misc]
        for value in fields.values():
            if value.startswith(b"{"):
                return WorkerRecord.unpack(value)
        return WorkerRecord(worker=name, epoch=0, endpoint="")

    async def blocks(self, name: str) -> set[int]:
        """As a picker gets them: the snapshot, and the events after it."""
        epoch = self.of(name).epoch
        data = await self.redis.get(KEYS.snapshot(epoch))
        snapshot = Snapshot.unpack(data) if data else None
        held, seq = (set(snapshot.blocks), snapshot.seq) if snapshot else (set[int](), 0)
        for _, fields in await self.redis.xrange(KEYS.events):
            for event in map(KvEvent.unpack, fields.values()):
                if event.epoch == epoch and event.seq > seq:
                    assert event.op is KvOp.STORE
                    held.update(event.blocks)
        return held

    async def load(self, name: str) -> LoadRecord | None:
        data = await self.redis.hget(KEYS.load, name)  # type: ignore[misc]
        return LoadRecord.unpack(data) if data else None


@asynccontextmanager
async def agent(server: ValkeyServer, *workers: WorkerConfig, **settings: Any) -> AsyncIterator[Rig]:
    settings = {"listen": "", "probe_interval_s": 0.05, **settings}
    config = AgentConfig(redis=server.url, workers=list(workers), **settings)
    running = Agent(config, AgentSettings(restart_pause_s=0.05))
    async with Redis.from_url(server.url) as redis, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(running.run())
        try:
            yield Rig(running, redis)
        finally:
            task.cancel()


@pytest.fixture
async def worker() -> AsyncIterator[SimulatedWorker]:
    worker = SimulatedWorker(Settings(adapters=("sql",), speed=50.0))
    await worker.start()
    yield worker
    await worker.stop()


def config_of(worker: SimulatedWorker, **more: Any) -> WorkerConfig:
    return WorkerConfig(url=f"http://{worker.endpoint}", name="w0", **more)


async def complete(worker: SimulatedWorker, prompt: list[int], **body: Any) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1, **body}
        answer = await client.post(f"http://{worker.endpoint}/v1/completions", json=body, timeout=20)
        assert answer.status_code == 200


async def fault(worker: SimulatedWorker, kind: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        await client.post(f"http://{worker.endpoint}/fault", json={"kind": kind})


def ready(rig: Rig, name: str = "w0") -> Callable[[], Any]:
    async def is_ready() -> bool:
        return await rig.state(name) is WorkerState.READY

    return is_ready


async def test_a_worker_becomes_ready_with_its_facts(redis_server: ValkeyServer, worker: SimulatedWorker) -> None:
    async with agent(redis_server, config_of(worker, labels={"zone": "a"})) as rig:
        await until(ready(rig))
        record = await rig.record("w0")
    assert record.endpoint == worker.endpoint
    assert (record.models, record.adapters) == ((MODEL,), ("sql",))
    assert record.context_limit_tokens == 16_384
    assert record.kv_capacity_tokens > 0
    assert record.publishes_kv
    assert record.labels == {"zone": "a"}


async def test_prompts_that_a_worker_caches_are_published_as_their_chain(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    async with agent(redis_server, config_of(worker)) as rig:
        await until(ready(rig))
        expected: set[int] = set()
        for model, adapter in ((MODEL, ""), ("sql", "sql")):
            await complete(worker, PROMPT, model=model)
            expected.update(chain.index_blocks(chain.scope(MODEL, adapter), PROMPT))

        async def is_in_redis() -> bool:
            return await rig.blocks("w0") == expected

        await until(is_in_redis)
        assert len(expected) == rig.of("w0").blocks.published == 10


async def test_what_a_worker_cached_before_its_agent_came_is_replayed(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    await complete(worker, PROMPT)
    async with agent(redis_server, config_of(worker)) as rig:
        await until(lambda: rig.agent.statistics().get("w0") and rig.of("w0").blocks.published == 5)


async def test_a_worker_that_dies_is_unhealthy_and_comes_back_as_a_new_epoch(redis_server: ValkeyServer) -> None:
    first = SimulatedWorker(Settings(speed=50.0))
    await first.start()
    async with agent(redis_server, config_of(first)) as rig:
        await until(ready(rig))
        await complete(first, PROMPT)
        await until(lambda: rig.of("w0").blocks.published == 5)
        epoch = rig.of("w0").epoch
        host, port = first.endpoint.split(":")
        await first.stop()

        async def is_unhealthy() -> bool:
            return await rig.state("w0") is WorkerState.UNHEALTHY

        await until(is_unhealthy)
        second = SimulatedWorker(Settings(host=host, port=int(port), speed=50.0))
        await second.start()
        try:
            await until(ready(rig))
            assert rig.of("w0").epoch != epoch
            assert rig.of("w0").blocks.published == 0
            await complete(second, PROMPT)
            await until(lambda: rig.of("w0").blocks.published == 5)
        finally:
            await second.stop()


async def test_a_worker_that_stalls_is_unhealthy_until_it_moves(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    async with agent(redis_server, config_of(worker), stall_after_s=0.3) as rig, asyncio.TaskGroup() as tasks:
        await until(ready(rig))
        tasks.create_task(complete(worker, PROMPT, max_tokens=2000, ignore_eos=True))
        await until(lambda: worker._engine.in_flight)
        await asyncio.sleep(0.05)
        await fault(worker, "stall")
        await until(lambda: rig.of("w0").state is WorkerState.UNHEALTHY)
        assert "without progress" in rig.of("w0").reason
        await fault(worker, "none")
        await until(ready(rig))


async def test_load_is_published(redis_server: ValkeyServer, worker: SimulatedWorker) -> None:
    async with agent(redis_server, config_of(worker)) as rig, asyncio.TaskGroup() as tasks:
        await until(ready(rig))
        tasks.create_task(complete(worker, PROMPT, max_tokens=2000, ignore_eos=True))

        async def is_running() -> bool:
            load = await rig.load("w0")
            return load is not None and load.running == 1 and load.decode_tokens_per_s > 0

        await until(is_running)


async def test_a_worker_that_is_not_there_does_not_hurt_the_others(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    absent = WorkerConfig(url="http://127.0.0.1:9", name="absent")
    async with agent(redis_server, absent, config_of(worker)) as rig:
        await until(ready(rig))
        assert await rig.state("absent") is WorkerState.LOADING


async def test_a_fault_in_the_code_for_one_worker_is_survived(
    redis_server: ValkeyServer, worker: SimulatedWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe, failures = Engine.probe, iter(range(3))

    async def fails_at_first(self: Engine) -> Any:
        if next(failures, None) is not None:
            raise RuntimeError("a fault of ours")
        return await probe(self)

    monkeypatch.setattr(Engine, "probe", fails_at_first)
    async with agent(redis_server, config_of(worker)) as rig:
        await until(ready(rig))


async def test_an_agent_that_ends_leaves_its_workers_draining(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    async with Redis.from_url(redis_server.url) as redis:
        async with agent(redis_server, config_of(worker)) as rig:
            await until(ready(rig))
        assert await Rig(rig.agent, redis).state("w0") is WorkerState.DRAINING


async def told_at_sigterm(server: ValkeyServer, *workers: WorkerConfig) -> WorkerState | None:
    """What an agent that was told to end has left of w0, once it was ready."""
    running = Agent(AgentConfig(redis=server.url, workers=[*workers], probe_interval_s=0.05, listen=""))
    async with Redis.from_url(server.url) as redis, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(running.run())
        await until(ready(Rig(running, redis)))
        os.kill(os.getpid(), signal.SIGTERM)
        await task
        return await Rig(running, redis).state("w0")


async def test_sigterm_ends_the_agent_and_leaves_its_workers_draining(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    assert await told_at_sigterm(redis_server, config_of(worker)) is WorkerState.DRAINING


async def test_sigterm_of_an_agent_of_several_servers_leaves_them_as_they_are(
    redis_server: ValkeyServer, worker: SimulatedWorker
) -> None:
    nobody = WorkerConfig(url="http://127.0.0.1:1", name="w1")
    assert await told_at_sigterm(redis_server, config_of(worker), nobody) is WorkerState.READY


async def test_an_agent_that_begins_says_nothing_of_an_engine_that_is_too_busy_to_answer(
    redis_server: ValkeyServer,
) -> None:
    asked = 0

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    config = WorkerConfig(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", name="w0")
    async with agent(redis_server, config) as rig:
        # Each look asks for two pages.
        await until(lambda: asked >= 4)
        assert not await rig.redis.exists(KEYS.worker("w0"))
    server.close()


# -- probing an HTTP server that misbehaves ----------------------------------------------------------------------


@asynccontextmanager
async def served(**pages: Any) -> AsyncIterator[str]:
    """A server with these pages; a callable may take its time."""
    import uvicorn

    async def page(content: Any) -> Response:
        content = await content() if callable(content) else content
        if isinstance(content, int):
            return Response(status_code=content)
        return PlainTextResponse(content) if isinstance(content, str) else JSONResponse(content)

    def route(path: str, content: Any) -> Route:
        async def endpoint(_: Any) -> Response:
            return await page(content)

        return Route(path, endpoint)

    routes = [route("/" + name.replace("__", "/"), content) for name, content in pages.items()]
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server._serve())
        await until(lambda: server.started)
        host, port = server.servers[0].sockets[0].getsockname()
        yield f"http://{host}:{port}"
        server.should_exit = True
        await task


async def probe_once(url: str, **settings: Any) -> Any:
    async with httpx.AsyncClient(trust_env=False) as client:
        return await Engine(client, url, settings=EngineSettings(**settings)).probe()


MODELS = {
    "data": [
        {"id": MODEL, "parent": None, "max_model_len": 8192, "owned_by": "vllm"},
        {"id": "sql", "parent": MODEL},
    ]
}


async def test_a_probe_reads_models_adapters_version_and_event_source() -> None:
    sources = {"0": {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://127.0.0.1:5558", "publisher": "zmq"}}
    async with served(health=200, v1__models=MODELS, version={"version": "0.32.0"}, kv_event_sources=sources) as url:
        status = await probe_once(url)
    assert status.reach is Reach.UP and status.metrics is None
    assert (status.models.names, status.models.adapters) == ((MODEL,), ("sql",))
    assert status.version == "0.32.0"
    assert status.source == EventSource("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558")


async def test_a_server_without_kv_events_has_no_event_source() -> None:
    sources = {"0": {"endpoint": "tcp://*:5557", "publisher": "null"}}
    async with served(health=200, v1__models=MODELS, kv_event_sources=sources) as url:
        assert (await probe_once(url)).source is None


async def test_a_server_that_answers_503_is_failing() -> None:
    async with served(health=503) as url:
        assert (await probe_once(url)).reach is Reach.FAILING


async def test_a_server_that_does_not_answer_in_time_is_silent() -> None:
    async def slow() -> int:
        await asyncio.sleep(0.5)
        return 200

    async with served(health=slow) as url:
        assert (await probe_once(url, timeout_s=0.1)).reach is Reach.SILENT


async def test_nobody_listening_is_refused() -> None:
    assert (await probe_once("http://127.0.0.1:9")).reach is Reach.REFUSED


async def test_an_answer_beyond_the_bound_is_not_read() -> None:
    page = 'vllm:num_requests_running{engine="0"} 1.0\n'
    async with served(health=200, v1__models=MODELS, metrics=page + "#" * 100_000) as url:
        assert (await probe_once(url, response_bytes=10_000)).metrics is None
        assert (await probe_once(url)).metrics.running == 1
