"""Workers that come, go and drain: in a file that changes, and as pods of an API server (a double, over HTTP)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from picker.agent.config import AgentConfig, KubernetesConfig, PodWorkers, WorkerConfig
from picker.agent.discovery.file import watch
from picker.agent.discovery.kubernetes import watch_pods
from picker.agent.service import Agent
from picker.agent.telemetry import Pulse, serve
from picker.config_files import ConfigError
from picker.redisview.records import WorkerState
from picker.simulation.process import free_ports
from picker.simulation.valkey import ValkeyServer
from tests.integration.engine_doubles import serving, sglang_pages
from tests.integration.kubernetes_api import ApiServer, serving_api
from tests.integration.test_agent import Rig, agent, ready
from tests.waiting import until

# -- a file --------------------------------------------------------------------------------------------------------


def write(path: Path, *workers: dict[str, Any]) -> None:
    """As editors and Kubernetes do: another file takes its place."""
    replace(path, yaml.safe_dump(list(workers)))


def replace(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def remove(path: Path) -> None:
    path.unlink()


async def test_a_file_is_read_again_when_it_changes_and_what_is_wrong_in_it_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    found: list[list[str]] = []

    async def follow() -> None:
        async with aclosing(watch(path, 0.01)) as lists:
            async for workers in lists:
                names = [worker.name for worker in workers]
                found.append(names)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        await asyncio.sleep(0.05)
        assert found == []
        write(path, {"url": "http://10.0.0.5:8000", "name": "a"})
        await until(lambda: found == [["a"]])
        replace(path, "- url: [\n")
        await asyncio.sleep(0.05)
        write(path, {"url": "http://10.0.0.5:8000", "name": "a"}, {"url": "http://10.0.0.5:8000", "name": "a"})
        await asyncio.sleep(0.05)
        remove(path)
        await asyncio.sleep(0.05)
        assert found == [["a"]]
        write(path, {"url": "http://10.0.0.5:8000", "name": "b"}, {"url": "http://10.0.0.6:8000", "name": "c"})
        await until(lambda: found == [["a"], ["b", "c"]])
        task.cancel()


async def test_workers_of_a_file_come_drain_and_go(redis_server: ValkeyServer, tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    async with serving(sglang_pages() | {"/health": 200}) as server:
        write(path)
        async with agent(redis_server, workers_file=str(path)) as rig:
            write(path, {"url": server.url, "name": "w0"})
            await until(ready(rig))
            epoch = rig.of("w0").epoch
            write(path, {"url": server.url, "name": "w0", "draining": True})
            await until(lambda: rig.of("w0").state is WorkerState.DRAINING)
            await until(lambda: is_state(rig, WorkerState.DRAINING))
            write(path, {"url": server.url, "name": "w0"})
            await until(ready(rig))
            assert rig.of("w0").epoch == epoch
            write(path)
            await until(lambda: rig.agent.statistics() == {})
            await until(lambda: is_state(rig, WorkerState.DRAINING))


async def is_state(rig: Rig, state: WorkerState) -> bool:
    return await rig.state("w0") is state


async def test_a_worker_whose_address_changes_begins_anew(redis_server: ValkeyServer, tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    async with serving(sglang_pages() | {"/health": 200}) as first, serving(sglang_pages() | {"/health": 200}) as other:
        write(path, {"url": first.url, "name": "w0"})
        async with agent(redis_server, workers_file=str(path)) as rig:
            await until(ready(rig))
            write(path, {"url": other.url, "name": "w0"})

            async def has_moved() -> bool:
                record = await rig.record("w0")
                return record.state is WorkerState.READY and f"http://{record.endpoint}" == other.url

            await until(has_moved)


async def test_more_workers_than_are_allowed_are_left_out(redis_server: ValkeyServer, tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    write(path, *({"url": f"http://127.0.0.1:{9 + n}", "name": f"w{n}"} for n in range(4)))
    async with agent(redis_server, workers_file=str(path), max_workers=2) as rig:
        await until(lambda: set(rig.agent.statistics()) == {"w0", "w1"})


# -- Kubernetes ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, KubernetesConfig]]:
    async with serving_api(tmp_path) as api:
        yield (
            api,
            KubernetesConfig(
                selector="app=vllm",
                port=8080,
                namespace="llm",
                labels={"zone": "topology", "none": "absent"},
                worker=PodWorkers(kv_events="tcp://{ip}:5557", gpu="H100"),
                kubeconfig=str(api.kubeconfig),
            ),
        )


@asynccontextmanager
async def following(settings: KubernetesConfig) -> AsyncIterator[dict[str, WorkerConfig]]:
    """The workers as they are now, by name."""
    now: dict[str, WorkerConfig] = {}

    async def follow() -> None:
        async with aclosing(watch_pods(settings, retry_s=0.05)) as lists:
            async for workers in lists:
                now.clear()
                now.update({worker.name: worker for worker in workers})

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(follow())
        try:
            yield now
        finally:
            task.cancel()


async def test_pods_of_a_selector_are_workers(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        api.put("pending", "", "Pending")
        async with following(settings) as now:
            await until(lambda: set(now) == {"a"})
            assert now["a"] == WorkerConfig(
                url="http://10.0.0.5:8080",
                name="a",
                kv_events="tcp://10.0.0.5:5557",
                gpu="H100",
                labels={"zone": "a"},
            )
            await until(lambda: api.watchers)
            api.put("b", "fd00::5")
            await until(lambda: "b" in now)
            assert now["b"].url == "http://[fd00::5]:8080"
            assert now["b"].kv_events == "tcp://[fd00::5]:5557"
        assert api.selectors == {"app=vllm"}


async def test_a_pod_that_is_told_to_end_drains_at_once(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        async with following(settings) as now:
            await until(lambda: "a" in now and api.watchers)
            assert not now["a"].draining
            api.put("a", "10.0.0.5", leaving=True)
            await until(lambda: now["a"].draining)
            api.delete("a")
            await until(lambda: now == {})


async def test_a_pod_that_is_missed_is_found_gone_by_the_next_list(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        api.put("b", "10.0.0.6")
        async with following(settings) as now:
            await until(lambda: set(now) == {"a", "b"} and api.watchers)
            api.delete("a", tell=False)
            api.cut()
            await until(lambda: set(now) == {"b"})


async def test_a_watch_that_is_too_old_begins_with_a_list(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        async with following(settings) as now:
            await until(lambda: "a" in now and api.watchers)
            api.is_gone = True
            api.put("b", "10.0.0.6", tell=False)
            api.cut()
            await until(lambda: set(now) == {"a", "b"})
            await until(lambda: api.watchers)
            api.put("c", "10.0.0.7")
            await until(lambda: "c" in now)


async def test_a_late_deletion_does_not_take_the_pod_that_has_the_name_now(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        async with following(settings) as now:
            await until(lambda: "a" in now and api.watchers)
            old = api.pods["a"]
            api.put("a", "10.0.0.9")
            api.tell("DELETED", old)
            api.put("b", "10.0.0.6")
            await until(lambda: "b" in now)
            assert now["a"].url == "http://10.0.0.9:8080"


async def test_while_the_api_server_fails_the_workers_stay_as_they_are(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        async with following(settings) as now:
            await until(lambda: "a" in now and api.watchers)
            known, api.fails = dict(now), 3
            api.put("b", "10.0.0.6", tell=False)
            api.cut()
            await until(lambda: api.fails == 1)
            assert now == known
            await until(lambda: set(now) == {"a", "b"})


async def test_outside_of_a_cluster_a_kubeconfig_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="set kubeconfig"):
        await anext(watch_pods(KubernetesConfig(selector="a=b", port=1)))


async def test_an_agent_without_a_way_into_the_cluster_ends_with_what_to_do(redis_server: ValkeyServer) -> None:
    config = AgentConfig(redis=redis_server.url, kubernetes=KubernetesConfig(selector="a=b", port=1), listen="")
    with pytest.raises(ConfigError, match="set kubeconfig"):
        await Agent(config).run()


# -- the agent's own pages -----------------------------------------------------------------------------------------


async def test_the_agent_tells_its_own_health_and_numbers(redis_server: ValkeyServer) -> None:
    (port,) = free_ports(1)
    async with serving(sglang_pages() | {"/health": 200}) as server, httpx.AsyncClient(trust_env=False) as client:
        worker = WorkerConfig(url=server.url, name="w0")
        async with agent(redis_server, worker, listen=f"127.0.0.1:{port}") as rig:
            await until(ready(rig))
            base = f"http://127.0.0.1:{port}"
            assert (await client.get(f"{base}/health")).status_code == 200
            assert (await client.get(f"{base}/other")).status_code == 404
            page = (await client.get(f"{base}/metrics")).text
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{base}/health")
    assert 'picker_agent_ready{worker="w0"} 1.0' in page
    assert 'picker_agent_kv_used_known{worker="w0"} 1.0' in page
    assert 'picker_agent_events_lost_total{worker="w0"} 0.0' in page


async def test_an_agent_whose_loop_stands_still_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    pulse = Pulse()
    stop = serve("127.0.0.1", port, dict, pulse)
    try:
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200
            monkeypatch.setattr(pulse, "_at", float("-inf"))
            assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 503
    finally:
        stop()


async def test_a_port_that_is_taken_does_not_keep_an_agent_from_its_work(redis_server: ValkeyServer) -> None:
    (port,) = free_ports(1)
    stop = serve("127.0.0.1", port, dict, Pulse())
    try:
        async with serving(sglang_pages() | {"/health": 200}) as server:
            worker = WorkerConfig(url=server.url, name="w0")
            async with agent(redis_server, worker, listen=f"127.0.0.1:{port}") as rig:
                await until(ready(rig))
    finally:
        stop()
