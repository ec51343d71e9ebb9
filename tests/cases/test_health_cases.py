"""Field cases of health: who is taken for well and is not, who is given up and should not be."""

from __future__ import annotations

import ast
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2

import picker
from picker.agent.config import KubernetesConfig, WorkerConfig
from picker.agent.discovery.kubernetes import watch_pods, workers_of
from picker.agent.engine import EngineStatus, Models, Reach
from picker.agent.engines import sglang, vllm
from picker.agent.lifecycle import Lifecycle
from picker.agent.metrics import AdapterUse, Unreadable, Which
from picker.agent.metrics import Metrics as EngineMetrics
from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.fleet.view import STALE_AFTER_S, View
from picker.kubernetes.objects import Metadata, Objects, Pod, PodStatus
from picker.picking import Picker
from picker.placing import Placement, Placer
from picker.prompts.reader import PromptReader
from picker.redisview.records import WorkerState
from picker.scheduling.decide import decide
from picker.scheduling.decision import Reason, Refused
from picker.simulation.valkey import ValkeyServer
from picker.telemetry.metrics import Metrics
from tests.integration.engine_doubles import serving, sglang_pages
from tests.integration.test_agent import agent, ready
from tests.integration.test_agent_discovery import cluster, following
from tests.integration.test_serve import config, health, serve
from tests.unit.fleets import Load, Worker, endpoint, fleet
from tests.unit.test_decide import DELAY, MODEL, request, route, send
from tests.waiting import until

A, B, C = 0, 1, 2
MODELS = Models(("m",))


@pytest.fixture
async def redis_server() -> AsyncIterator[ValkeyServer]:
    async with ValkeyServer() as server:
        yield server


def winners(view: View, now: float = 0.0, **wanted: Any) -> set[int]:
    return {route(view, request(**wanted), now=now, seed=seed).slots[0] for seed in range(100)}


def up(*names: str, metrics: EngineMetrics | None = None) -> EngineStatus:
    return EngineStatus(Reach.UP, metrics or EngineMetrics(), Models(names))


def test_he_01_a_worker_that_fell_silent_idle_draws_nothing_while_others_are_heard() -> None:
    view = fleet(3)
    for beat in range(12):
        view.update_load(A, Load(1), now=beat * 5.0)
        for slot in (B, C):
            view.update_load(slot, Load(beat + 2, running=8, kv_used=0.5), now=beat * 5.0)
    assert winners(view, now=60.0) == {B, C}
    for slot in (B, C):
        view.update_load(slot, Load(13, running=8, kv_used=0.5), now=60.0 + STALE_AFTER_S + 1)
        view.update_load(slot, Load(13, running=8, kv_used=0.5), now=75.0)
    went = Counter(send(view, request(chain_id=n), now=75.0, seed=n) for n in range(60))
    assert set(went) == {A, B, C}, "where nobody is heard, anybody is better than none"


async def test_he_02_a_wrong_port_is_told_once_and_the_right_one_is_used(redis_server: ValkeyServer) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(sglang_pages() | {"/health": 200}) as server:
            wrong = WorkerConfig(url="http://127.0.0.1:9", name="wrong")
            right = WorkerConfig(url=server.url, name="w0")
            async with agent(redis_server, wrong, right) as rig:
                await until(ready(rig))
                await until(lambda: server.asked["/metrics"] > 30)
                assert rig.of("wrong").reason == "cannot connect"
    assert len([entry for entry in logs if entry.get("worker") == "wrong" and entry["event"] == "worker_state"]) == 1


async def test_he_04_a_worker_that_loads_its_weights_is_not_picked(redis_server: ValkeyServer) -> None:
    async with serving(sglang_pages() | {"/health": 503}) as server:
        async with agent(redis_server, WorkerConfig(url=server.url, name="w0")) as rig:
            await until(lambda: server.asked.get("/health", 0) > 10)
            assert await rig.state("w0") is WorkerState.LOADING
            server.pages["/health"] = 200
            await until(ready(rig))
    view = fleet(2)
    view.update_facts(A, Worker("w0", state="loading", models=()))
    assert winners(view) == {B}


SETTINGS = KubernetesConfig(selector="a=b", port=8000)


def pod(name: str, ip: str, phase: str = "Running", uid: str = "1") -> Pod:
    return Pod(Metadata(name, uid), PodStatus(ip, phase))


def names(pods: Objects[Pod]) -> list[str]:
    return [worker.name for worker in workers_of(pods.all(), SETTINGS)]


def test_he_05_a_pod_that_fails_and_loses_its_address_at_once_is_gone() -> None:
    pods = Objects[Pod]()
    pods.replace([pod("a", "10.0.0.5"), pod("b", "10.0.0.6")])
    pods.apply("MODIFIED", pod("a", "", "Failed"))
    assert names(pods) == ["b"]
    pods.apply("MODIFIED", pod("b", "10.0.0.6", "Failed"))
    assert names(pods) == []


async def test_he_05_a_deletion_that_is_missed_is_made_up_for_by_the_next_list(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        api.put("b", "10.0.0.6")
        async with following(settings) as now:
            await until(lambda: set(now) == {"a", "b"} and api.watchers)
            api.delete("a", tell=False)  # while the watch is broken
            api.cut()
            await until(lambda: set(now) == {"b"})
            await until(lambda: api.watchers)
            api.pods["b"]["status"] = {}  # a deletion that does not say how it ended
            api.delete("b")
            await until(lambda: now == {})


@pytest.mark.parametrize("publishes_kv", [True, False])
def test_he_06_a_wedged_worker_loses_a_share_and_not_the_traffic(publishes_kv: bool) -> None:
    """A accepts and never answers: clients give up after half a minute. The others take half a second."""
    view = fleet(3, publishes_kv=publishes_kv)
    placer = Placer(Config(), view, salt=1)
    open_, lost = list[tuple[float, Placement]](), list[float]()
    for step in range(4000):
        now = step * 0.02
        for due, done in [each for each in open_ if each[0] <= now]:
            open_.remove((due, done))
            if done.decision.slots[0] != A:
                placer.answered(done, 200, "", now)
            placer.release(done, now)
        view.sweep(now)
        wanted = request(tokens=640, chain_id=step)
        placement = placer.place(wanted, now)
        assert isinstance(placement, Placement)
        slot = placement.decision.slots[0]
        if slot == A:
            lost.append(now)
        elif publishes_kv:
            view.inflight.announced(slot, wanted.chain[-1], now)
        open_.append((now + (30.0 if slot == A else 0.5), placement))
    assert len(lost) < 0.05 * 4000
    assert len([at for at in lost if at > 65.0]) <= 5
    assert view.breakers.open == 1, "which is a metric"


def test_he_06_an_engine_that_has_requests_and_moves_none_is_unhealthy() -> None:
    for load in (EngineMetrics(running=3), EngineMetrics(waiting=3)):
        lifecycle = Lifecycle()
        states = [lifecycle.observe(up("m", metrics=load), float(second)).state for second in range(12)]
        assert states[0] is WorkerState.READY and states[-1] is WorkerState.UNHEALTHY


KV_USED = {
    "the new name": ('vllm:kv_cache_usage_perc{engine="0"} 0.25\n', 0.25),
    "the old name": ('vllm:gpu_cache_usage_perc{engine="0"} 0.5\n', 0.5),
    "both": ('vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n', 0.25),
    "neither": ("", None),
}


@pytest.mark.parametrize(("lines", "expected"), KV_USED.values(), ids=KV_USED)
def test_he_08_a_cache_usage_under_any_name_is_read_and_none_is_not_zero(lines: str, expected: float | None) -> None:
    page = 'vllm:num_requests_running{engine="0"} 1\n' + lines
    assert vllm.read_metrics(page.encode(), Which()).kv_used == expected


def test_he_08_sglang_has_a_name_of_its_own() -> None:
    assert sglang.read_metrics(b'sglang:token_usage{model_name="m"} 0.75\n', Which()).kv_used == 0.75
    with pytest.raises(Unreadable):
        vllm.read_metrics(b'sglang:token_usage{model_name="m"} 0.75\n', Which())


async def test_he_08_what_is_unknown_is_seen(redis_server: ValkeyServer) -> None:
    pages = sglang_pages() | {"/health": 200, "/metrics": 'sglang:num_running_reqs{model_name="m"} 1.0\n'}
    with structlog.testing.capture_logs() as logs:
        async with serving(pages) as server, agent(redis_server, WorkerConfig(url=server.url, name="w0")) as rig:
            await until(ready(rig))
            await until(lambda: server.asked["/metrics"] > 10)
            assert not rig.of("w0").has_kv_used
    assert len([entry for entry in logs if entry["event"] == "engine_hides_kv_used"]) == 1


def adapters(*series: tuple[str, float]) -> AdapterUse:
    lines = [
        f'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{names}",waiting_lora_adapters=""}} {value}\n'
        for names, value in series
    ]
    page = 'vllm:num_requests_running{engine="0"} 1\n' + "".join(lines)
    return vllm.read_metrics(page.encode(), Which()).adapters


def test_he_09_the_newest_series_counts_and_an_empty_name_is_no_adapter() -> None:
    assert adapters(("a,b", 1.0), ("c", 3e9), ("d", 2.0)).running == {"c"}
    assert adapters(("", 1.0)) == AdapterUse(slots=4)
    assert adapters((",,", 1.0)).running == frozenset()
    assert adapters((" a , b c ", 1.0)).running == {"a", "b c"}
    assert adapters(('say \\"hi\\",x', 1.0)).running == {'say "hi"', "x"}


async def test_he_11_the_port_is_the_operators_and_not_the_first_of_the_pod(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        assert [port["containerPort"] for port in api.pods["a"]["spec"]["containers"][0]["ports"]] == [9]
        async with aclosing(watch_pods(settings)) as found:
            (worker,) = await anext(found)
    assert (worker.url, worker.endpoint) == ("http://10.0.0.5:8080", "10.0.0.5:8080")


def test_he_13_a_worker_that_failed_once_and_recovered_gets_its_full_share_again() -> None:
    view = fleet(2)
    placer = Placer(Config(), view)
    for _ in range(Config().breaker.failures):
        placement = placer.place(request(subset=frozenset({endpoint(A)})), 0.0)
        assert isinstance(placement, Placement)
        placer.answered(placement, 503, "", 0.0)
        placer.release(placement, 0.0)
    assert winners(view, now=1.0) == {B}
    later = Config().breaker.pause_s + 1
    trial = placer.place(request(subset=frozenset({endpoint(A)})), later)
    assert isinstance(trial, Placement) and trial.decision.slots[0] == A
    placer.answered(trial, 200, "", later)
    placer.release(trial, later)
    went = Counter(send(view, request(chain_id=n), now=later + 1, seed=n) for n in range(200))
    assert min(went[A], went[B]) > 80


async def test_he_14_a_pod_that_is_to_end_gets_nothing_new_from_then_on(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (api, settings):
        api.put("a", "10.0.0.5")
        async with following(settings) as now:
            await until(lambda: "a" in now and api.watchers)
            api.put("a", "10.0.0.5", leaving=True)  # still Running, still Ready
            await until(lambda: now["a"].draining)
    view = fleet(2)
    running = view.place(A, request().chain, True, 1.0, 6400, now=0.0)
    view.update_facts(A, Worker("w0", endpoint=endpoint(A), state="draining"))
    assert winners(view) == {B}
    assert running.is_open, "what it has it keeps"


async def test_he_15_every_replica_is_ready_and_none_leads(tmp_path: Path) -> None:
    folders = [tmp_path / str(number) for number in range(3)]
    processes = []
    try:
        for folder in folders:
            folder.mkdir()
            path, ports = config(folder)
            processes.append((serve(folder, path), ports[0]))
        for process, port in processes:
            async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:

                async def is_ready(channel: Any = channel) -> bool:
                    return await health(channel, "readiness") == health_pb2.HealthCheckResponse.SERVING

                await process.wait_until(is_ready)
    finally:
        for process, _ in processes:
            process.kill()


async def test_he_16_a_picker_that_knows_nobody_yet_refuses_nobody() -> None:
    answers = []
    for is_blind in (True, False):
        standby = Picker(Config(), View(), PromptReader({}), Metrics(), lambda is_blind=is_blind: is_blind)
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        answers.append(await standby.pick(Pick({":method": "POST", ":path": "/v1/chat/completions"}, body)))
        standby.close()
    assert answers[0] == Picked(()), "Envoy goes by its own list"
    assert isinstance(answers[1], NotPicked) and answers[1].status == 503, "once the fleet is known to be empty"


def test_he_20_an_address_that_another_model_has_now_gets_none_of_the_old_ones_requests() -> None:
    """A's agent, which has not heard of the deletion yet, finds B's model there."""
    lifecycle = Lifecycle()
    assert lifecycle.observe(up("x"), 0.0).begins_anew
    assert lifecycle.observe(up("y"), 1.0).begins_anew, "nothing of what A has cached is there"
    view = View()
    old = view.admit(Worker("pod-a", epoch=1, endpoint="10.0.0.5:8000", models=("x",)), now=0.0)
    view.index.trust(old, True)
    view.index.store(old, request().chain)
    view.admit(Worker("pod-b", epoch=2, endpoint="10.0.0.5:8000", models=("y",)), now=1.0)
    view.admit(Worker("pod-c", epoch=3, endpoint="10.0.0.6:8000", models=("x",)), now=1.0)
    view.admit(Worker("pod-a", epoch=4, endpoint="10.0.0.5:8000", models=("y",)), now=1.0)
    assert {decide_endpoint(view, "x", seed) for seed in range(20)} == {"10.0.0.6:8000"}
    assert {decide_endpoint(view, "y", seed) for seed in range(20)} == {"10.0.0.5:8000"}
    assert view.hit_blocks(request().chain).max() == 0


def decide_endpoint(view: View, model: str, seed: int) -> str:
    return route(view, request(model=model), seed=seed).endpoints[0]


def test_he_20_a_late_deletion_of_the_old_pod_leaves_the_new_one() -> None:
    pods = Objects[Pod]()
    old, new = pod("vllm-0", "10.0.0.5", uid="old"), pod("vllm-0", "10.0.0.5", uid="new")
    for kind, each in (("ADDED", old), ("ADDED", new), ("DELETED", old)):
        pods.apply(kind, each)
    assert names(pods) == ["vllm-0"]


WALL_CLOCKS = {"time", "time_ns", "now", "utcnow", "today"}


def test_he_21_no_age_is_taken_from_a_clock_that_jumps() -> None:
    """Every module that judges ages: of workers, loads, bookings, engines."""
    found = []
    for room in ("agent", "fleet", "scheduling"):
        for path in (Path(picker.__file__).parent / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
                    if owner in ("time", "datetime") and node.func.attr in WALL_CLOCKS:
                        found.append(f"{path}:{node.lineno}")
    assert found == []


async def test_he_21_a_step_of_the_clock_makes_nobody_stale_or_fresh(
    redis_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, jump = time.time, SimpleNamespace(by=0.0)
    monkeypatch.setattr(time, "time", lambda: real() + jump.by)
    async with serving(sglang_pages() | {"/health": 200}) as server:
        async with agent(redis_server, WorkerConfig(url=server.url, name="w0"), stall_after_s=30.0) as rig:
            await until(ready(rig))
            epoch = rig.of("w0").epoch
            for jump.by in (3600.0, -3600.0):
                asked = server.asked["/metrics"]
                await until(lambda asked=asked: server.asked["/metrics"] > asked + 5)
                assert (rig.of("w0").state, rig.of("w0").epoch) == (WorkerState.READY, epoch)
    assert adapters(("a", 1.0), ("future", real() + 1e6)).running == {"future"}


async def test_he_22_where_no_load_can_be_read_requests_go_on_by_the_pickers_books(redis_server: ValkeyServer) -> None:
    pages = sglang_pages() | {"/health": 200, "/metrics": 503}
    with structlog.testing.capture_logs() as logs:
        async with serving(pages) as server, agent(redis_server, WorkerConfig(url=server.url, name="w0")) as rig:
            await until(ready(rig))
            await until(lambda: server.asked["/metrics"] > 20)
            assert rig.of("w0").state is WorkerState.READY
            assert not rig.of("w0").has_metrics
    assert len([entry for entry in logs if entry["event"] == "engine_metrics_unreadable"]) == 1


def test_he_22_workers_that_all_fall_silent_are_still_picked_by_what_is_in_flight() -> None:
    view = fleet(3)
    for now in (0.0, 100.0):
        for slot in (A, B, C):
            view.update_load(slot, Load(1), now)
    assert not view.fresh().any()
    for _ in range(10):
        view.place(A, [], True, 1.0, 6400, now=100.0)
    assert winners(view, now=100.0) == {B, C}
    assert len(view.usable_endpoints()) == 3
    nobody = decide(request(), View(), DELAY, MODEL, 0.0, Random(0))
    assert nobody == Refused(Reason.NO_WORKERS)
