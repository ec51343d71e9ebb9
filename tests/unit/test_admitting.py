"""The waiting room of a picker: futures, timers, clients that leave, drains."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from picker.admission.entry import Entry
from picker.admission.settings import AdmissionSettings, Bounds, ClassSettings
from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.eager import run_eagerly
from picker.extproc.events import NotPicked, Picked
from picker.fleet.view import View
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.scheduling.profile import Profile, WorkerLimits
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import endpoint, fleet, slot_at

T = TypeVar("T")
HEADERS = {":method": "POST", ":path": "/v1/completions"}
SETTINGS = AdmissionSettings(
    classes=(
        ClassSettings(name="interactive", priority=1, objectives=("chat",)),
        ClassSettings(name="default", share=0.1),
    ),
    total=Bounds(requests=60),
)


def ask(prompt: str = "x", tenant: str = "", **headers: str) -> Pick:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Pick({**HEADERS, **named}, json.dumps({"model": "llama", "prompt": prompt}).encode(), tenant=tenant)


@pytest.fixture
def view() -> View:
    return fleet(2)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest_asyncio.fixture
async def picker(view: View, metrics: Metrics) -> AsyncIterator[Picker]:
    picker = make(view, metrics)
    yield picker
    picker.close()
    assert int(view.inflight.requests.sum()) == 0
    assert picker.admitting.readings()["queue_requests"][1] == 0


def make(view: View, metrics: Metrics, admission: AdmissionSettings = SETTINGS, **rest: object) -> Picker:
    config = Config(admission=admission, **rest)  # type: ignore[arg-type]
    return Picker(config, view, PromptReader({}), metrics, lambda: False)


def fill(view: View, is_full: bool = True) -> None:
    for slot in view.slots():
        view.kv_used[slot] = 1.0 if is_full else 0.0


def started(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(work)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def queued(picker: Picker) -> int:
    return int(picker.admitting.readings()["queue_requests"][1])


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"picker_{name}", labels) or 0.0


async def test_while_there_is_room_a_pick_is_made_on_the_spot(picker: Picker, metrics: Metrics) -> None:
    answer = run_eagerly(picker.pick(ask()))
    assert isinstance(answer, Picked) and answer.endpoints
    picker.release(answer.placement)
    assert picker.admitting._timer is None


async def test_a_request_waits_and_is_placed_once_there_is_room(view: View, picker: Picker, metrics: Metrics) -> None:
    fill(view)
    waits = started(picker.pick(ask()))
    await until(lambda: queued(picker) == 1)
    await asyncio.sleep(0.05)
    assert not waits.done()
    fill(view, False)
    answer = await waits
    assert isinstance(answer, Picked) and answer.endpoints
    assert value(metrics, "queue_wait_seconds_count", **{"class": "default"}) == 1
    picker.release(answer.placement)
    await until(lambda: picker.admitting._timer is None)


async def test_requests_that_have_waited_do_not_pile_up_though_no_collector_runs(view: View, picker: Picker) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(8):
            fill(view)
            waits = [started(picker.pick(ask())) for _ in range(50)]
            await until(lambda: queued(picker) == 50)
            fill(view, False)
            for each in waits:
                answer = await each
                assert isinstance(answer, Picked)
                picker.release(answer.placement)
        # Heaps forget late, and only so much.
        assert sum(isinstance(found, Entry) for found in gc.get_objects()) < 250
    finally:
        gc.enable()


async def test_a_client_that_leaves_frees_its_place_at_once(view: View, picker: Picker) -> None:
    fill(view)
    waits = [started(picker.pick(ask())) for _ in range(5)]
    await until(lambda: queued(picker) == 5)
    for each in waits[:3]:
        each.cancel()
    await asyncio.wait(waits[:3])
    assert queued(picker) == 2
    fill(view, False)
    for each in waits[3:]:
        answer = await each
        assert isinstance(answer, Picked)
        picker.release(answer.placement)


async def test_a_client_that_leaves_before_its_task_has_begun_is_forgotten_too(view: View, picker: Picker) -> None:
    fill(view)
    rest = run_eagerly(picker.pick(ask()))
    assert isinstance(rest, asyncio.Task) and queued(picker) == 1
    rest.cancel()
    await asyncio.wait([rest])
    await until(lambda: queued(picker) == 0)


async def test_a_client_that_leaves_in_the_moment_of_its_placement_leaves_no_booking(
    view: View, picker: Picker
) -> None:
    fill(view)
    waits = [started(picker.pick(ask())) for _ in range(20)]
    await until(lambda: queued(picker) == 20)
    fill(view, False)
    picker.admitting._look()
    assert int(view.inflight.requests.sum()) == 20
    for each in waits:
        each.cancel()
    await asyncio.wait(waits)
    assert int(view.inflight.requests.sum()) == 0


async def test_a_defect_is_the_defect_of_one_request(
    view: View, picker: Picker, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(view)
    bad = started(picker.pick(ask("bad", x_llm_d_inference_objective="chat")))
    good = started(picker.pick(ask("good")))
    await until(lambda: queued(picker) == 2)
    decide = picker._placer.decide

    def fails(about: object, now: float) -> object:
        if about is broken:
            raise RuntimeError("a defect")
        return decide(about, now)  # type: ignore[arg-type]

    [broken] = [entry.request for _, _, entry in picker.admitting._admission.waiting._leaving if entry.rank == 0]
    monkeypatch.setattr(picker._placer, "decide", fails)
    fill(view, False)
    assert await bad == Picked(())
    answer = await good
    assert isinstance(answer, Picked) and answer.endpoints
    assert metrics.errors._value.get() == 1
    picker.release(answer.placement)


async def test_classes_go_by_the_objective_and_odd_ones_count(view: View, picker: Picker, metrics: Metrics) -> None:
    fill(view)
    order: list[str] = []

    async def go(objective: str) -> None:
        answer = await picker.pick(ask(x_llm_d_inference_objective=objective))
        assert isinstance(answer, Picked)
        order.append(objective)
        picker.release(answer.placement)

    tasks = [started(go(each)) for each in ("nonsense", "default", "chat", "interactive")]
    await until(lambda: queued(picker) == 4)
    fill(view, False)
    await asyncio.gather(*tasks)
    assert set(order[:2]) == {"chat", "interactive"}
    assert value(metrics, "unknown_objectives_total") == 1


async def test_limits_of_a_profile_make_requests_wait_and_not_fail(view: View, metrics: Metrics) -> None:
    profile = Profile(limits=WorkerLimits(running=1))
    picker = make(view, metrics, profiles=(profile,))
    first = [await picker.pick(ask()) for _ in range(2)]
    third = started(picker.pick(ask()))
    await until(lambda: queued(picker) == 1)
    assert isinstance(first[0], Picked)
    picker.release(first[0].placement)
    answer = await third
    assert isinstance(answer, Picked) and answer.endpoints[0] == first[0].endpoints[0]
    picker.close()


async def test_without_admission_nobody_waits(view: View, metrics: Metrics) -> None:
    fill(view)
    picker = make(view, metrics, AdmissionSettings(enabled=False))
    answer = run_eagerly(picker.pick(ask()))
    assert isinstance(answer, Picked) and answer.endpoints
    picker.close()


async def test_the_pick_goes_to_who_is_best_when_it_is_made(view: View, picker: Picker) -> None:
    fill(view)
    waits = started(picker.pick(ask()))
    await until(lambda: queued(picker) == 1)
    view.kv_used[slot_at(view, endpoint(1))] = 0.0
    view.ready[slot_at(view, endpoint(0))] = False
    answer = await waits
    assert isinstance(answer, Picked) and answer.endpoints == (endpoint(1),)
    picker.release(answer.placement)
    view.ready[slot_at(view, endpoint(0))] = True


async def test_a_drain_tells_all_who_wait_to_go_elsewhere(view: View, picker: Picker) -> None:
    fill(view)
    waits = [started(picker.pick(ask())) for _ in range(3)]
    await until(lambda: queued(picker) == 3)
    picker.admitting.drain()
    for answer in await asyncio.gather(*waits):
        assert isinstance(answer, NotPicked) and (answer.status, answer.reason) == (503, "shutting-down")
    late = await picker.pick(ask())
    assert isinstance(late, NotPicked) and late.reason == "shutting-down"
    fill(view, False)
    placed = await picker.pick(ask())
    assert isinstance(placed, Picked) and placed.endpoints
    picker.release(placed.placement)


async def test_the_tenant_can_be_taken_from_the_proxys_metadata_alone(view: View, metrics: Metrics) -> None:
    settings = AdmissionSettings(tenant_from="metadata", tenants={"gold": 2.0})
    picker = make(view, metrics, settings)
    fill(view)
    forged = started(picker.pick(ask(x_llm_d_inference_fairness_id="gold")))
    true = started(picker.pick(ask(tenant="gold")))
    await until(lambda: queued(picker) == 2)
    tenants = {key[1] for key in picker.admitting._admission.waiting._by_tenant}
    assert tenants == {0, "gold"}
    picker.admitting.drain()
    await asyncio.gather(forged, true)
    picker.close()
