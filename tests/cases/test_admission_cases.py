"""Field cases of flow control, each named by its id."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from picker.admission.control import Admitted
from picker.admission.entry import Entry
from picker.admission.fair import FairQueue
from picker.admission.pace import LONGEST_RETRY_S, Pace, retry_after_s
from picker.admission.settings import AdmissionSettings, Bounds
from picker.admission.terms import Rules
from picker.config import Config
from picker.extproc.actions import Finish, Pick, SendRefusal
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import NotPicked, Picked, RequestHeaders
from picker.fleet.view import View
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.requests.headers import read_terms
from picker.telemetry.metrics import Metrics
from tests.unit.desks import MODEL, Desk, chain, crowd
from tests.unit.fleets import Load, endpoint, fleet, slot_at

HEADERS = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
BODY = json.dumps({"model": "llama", "prompt": "x"}).encode()


@pytest.fixture
def view() -> View:
    return fleet(2)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest_asyncio.fixture
async def picker(view: View, metrics: Metrics) -> AsyncIterator[Picker]:
    config = Config(admission=AdmissionSettings(total=Bounds(requests=50)))
    picker = Picker(config, view, PromptReader({}), metrics, lambda: False)
    yield picker
    picker.admitting.drain()
    picker.close()


def fill(view: View, is_full: bool = True) -> None:
    for slot in view.slots():
        view.kv_used[slot] = 1.0 if is_full else 0.0


async def crowded(picker: Picker, view: View, count: int) -> list[asyncio.Task[Picked | NotPicked]]:
    """So many requests that wait."""
    fill(view)
    loop = asyncio.get_running_loop()
    # The highest class may fill the queue to the end.
    wanted = Pick(HEADERS | {"x-llm-d-inference-objective": "interactive"}, BODY)
    tasks = [loop.create_task(picker.pick(wanted)) for _ in range(count)]
    async with asyncio.timeout(10):
        while picker.admitting.readings()["queue_requests"][1] < count:
            await asyncio.sleep(0.005)
    return tasks


def test_fc_01_a_queue_with_content_is_never_collected() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    request = Desk(fleet(1)).entry().request

    def add(tenant: str, number: int) -> Entry:
        each = Entry(request, tenant=tenant, cost=10.0)
        each.number, each.is_waiting = number, True
        queue.add(each)
        return each

    waiting = [add("f1", number) for number in range(3)]
    # Many tenants come and go, so that what is idle is collected again and again.
    for number in range(5000):
        other = add(f"other {number}", 100 + number)
        other.is_waiting = False
        queue.left(other)
    served = []
    while each := queue.take():
        queue.serve(each, each.cost)
        served.append(each)
    assert served == waiting


def test_ld_19_one_worker_that_has_room_again_takes_what_it_has_room_for_and_no_more() -> None:
    view = fleet(2)
    desk = Desk(view, AdmissionSettings(total=Bounds(requests=1000)))
    view.update_load(slot_at(view, endpoint(0)), Load(1, running=90, kv_used=1.0), 0.0)
    view.update_load(slot_at(view, endpoint(1)), Load(1, running=9, kv_used=1.0), 0.0)
    waiting = [desk.entry(4000, chain(number, 4000)) for number in range(500)]
    assert all(desk.arrive(each, 0.0) is None for each in waiting)
    freed = slot_at(view, endpoint(1))
    view.update_load(freed, Load(2, running=8, kv_used=0.5), 0.1)
    released = []
    for step in range(20):
        # Dispatched again and again on the one report: what was sent is on the books and leaves no room.
        released += desk.dispatch(0.1 + step / 1000)
    assert 0 < len(released) <= 5
    assert {verdict.decision.slots[0] for _, verdict in released if isinstance(verdict, Admitted)} == {freed}
    for each, _ in released:
        view.inflight.announced(freed, each.request.chain[-1], 0.3)
    again = [each for step in range(20) for each in desk.dispatch(0.3 + step / 100)]
    assert 0 < len(again) <= len(released)


@pytest.mark.parametrize(("a_second", "least", "most"), [(0, 0, 0), (1, 20, LONGEST_RETRY_S), (200, 0, 0)])
def test_fc_04_clients_are_told_when_to_come_back_by_how_fast_the_queue_drains(
    a_second: int, least: int, most: int
) -> None:
    pace = Pace()
    pace.elapse(True, 0.0)
    for tick in range(1, 2001):
        now = tick / 200
        if a_second and tick % (200 // a_second) == 0:
            pace.ended(is_served=True)
        pace.elapse(True, now)
    told = [retry_after_s(pace.served_s(100), chance / 50) for chance in range(50)]
    assert all(least <= seconds <= most for seconds in told)
    assert len(set(told)) > 5 or not most, "all come back together"


async def test_fc_10_whoever_waits_at_shutdown_is_told_to_retry(picker: Picker, view: View) -> None:
    tasks = await crowded(picker, view, 50)
    picker.admitting.drain()
    for answer in await asyncio.gather(*tasks):
        assert isinstance(answer, NotPicked)
        assert (answer.status, answer.reason) == (503, "shutting-down")


async def test_fc_11_a_full_queue_refuses_by_the_headers_before_the_body_is_sent(
    picker: Picker, view: View, metrics: Metrics
) -> None:
    tasks = await crowded(picker, view, 50)
    budget = ByteBudget(1 << 20)
    began, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(2000):
        conversation = Conversation(Settings(), budget, picker.turn_away)
        _, refusal, end = conversation.receive(RequestHeaders(HEADERS | {"content-length": "1000000"}), 0.0)
        assert isinstance(refusal, SendRefusal) and isinstance(end, Finish)
        assert (refusal.status, refusal.reason) == (429, "queue-full")
    # Without a byte of 2 GB: a fifth of a second's CPU, with room for a slow machine.
    assert time.process_time() - began < 2.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 50_000
    assert budget.taken == 0
    fill(view, False)
    for answer in await asyncio.gather(*tasks):
        assert isinstance(answer, Picked)
        picker.release(answer.placement)
    assert picker.turn_away(HEADERS, "") is None


@pytest.mark.parametrize(
    "objective", ["no such thing", "", "batch,interactive", "x" * 1024, "99999999999", "-2147483648", "NaN"]
)
async def test_fc_13_an_odd_objective_means_the_default_class(
    picker: Picker, view: View, metrics: Metrics, objective: str
) -> None:
    fill(view)
    loop = asyncio.get_running_loop()
    waits = loop.create_task(picker.pick(Pick(HEADERS | {"x-llm-d-inference-objective": objective}, BODY)))
    async with asyncio.timeout(10):
        while picker.admitting.by_class()["queue_class_requests"][1]["default"] < 1:
            await asyncio.sleep(0.005)
    fill(view, False)
    answer = await waits
    assert isinstance(answer, Picked) and answer.endpoints
    picker.release(answer.placement)
    # An over-long name is as good as none.
    unknown = metrics.registry.get_sample_value("picker_unknown_objectives_total")
    assert unknown == (1 if 0 < len(objective) <= 256 else 0)


def test_fc_15_a_request_is_not_bound_to_the_worker_that_was_best_when_it_came() -> None:
    desk = Desk(fleet(2))
    first, second = crowd(desk, 2)
    view, a, b = desk.view, slot_at(desk.view, endpoint(0)), slot_at(desk.view, endpoint(1))
    view.index.store(a, chain(7, 640))
    waits = desk.entry(640, chain(7, 640))
    assert desk.arrive(waits, 0.0) is None
    on_b = first if first.ticket.slot == b else second
    view.inflight.announced(b, on_b.request.chain[-1], 0.3)
    [(entry, verdict)] = desk.dispatch(0.3)
    assert entry is waits and isinstance(verdict, Admitted)
    assert verdict.decision.slots[0] == b


def test_fc_16_a_hundred_thousand_tenants_cost_little_and_starve_nobody() -> None:
    rules = Rules(AdmissionSettings(), 42, MODEL)
    queue = FairQueue(lambda tenant: 1.0)
    request = Desk(fleet(1)).entry().request
    honest_at: list[int] = []
    served = 0
    began = time.process_time()
    for number in range(100_000):
        for name in (f"id {number}", "honest") if number % 100 == 0 else (f"id {number}",):
            each = Entry(request, tenant=rules.tenant(name), cost=100.0, ticket=name)
            each.number, each.is_waiting = 2 * number + (name == "honest"), True
            queue.add(each)
        # A little slower than they come, so that a backlog builds up.
        if number % 10 < 8 and (next_one := queue.take()):
            queue.serve(next_one, next_one.cost)
            served += 1
            if next_one.ticket == "honest":
                honest_at.append(served)
    assert time.process_time() - began < 20
    assert len(queue._flows) <= AdmissionSettings().tenant_buckets + 64
    # One of a thousand buckets: it offers a hundredth of the traffic, and gets a bucket's fair share at least.
    assert len(honest_at) > 0.5 * served / AdmissionSettings().tenant_buckets


def test_se_04_ids_that_change_with_each_request_do_not_escape_fair_sharing() -> None:
    rules = Rules(AdmissionSettings(tenants={"b": 1.0}), 42, MODEL)
    queue = FairQueue(lambda tenant: 1.0)
    request = Desk(fleet(1)).entry().request
    waiting = [("a", f"random {number}") for number in range(1000)] + [("b", "b")] * 100
    for number, (whose, name) in enumerate(waiting):
        tenant = rules.tenant(read_terms({"x-llm-d-inference-fairness-id": name}).tenant)
        each = Entry(request, tenant=tenant, cost=100.0, ticket=whose)
        each.number, each.is_waiting = number, True
        queue.add(each)
    first = []
    for _ in range(100):
        each = queue.take()  # type: ignore[assignment]
        queue.serve(each, each.cost)
        first.append(each.ticket)
    assert 49 <= first.count("b") <= 51


async def test_se_04_anothers_id_is_worth_nothing_where_the_proxy_names_tenants(view: View, metrics: Metrics) -> None:
    admission = AdmissionSettings(tenants={"b": 1.0}, tenant_from="metadata")
    picker = Picker(Config(admission=admission), view, PromptReader({}), metrics, lambda: False)
    fill(view)
    loop = asyncio.get_running_loop()
    forged = Pick(HEADERS | {"x-llm-d-inference-fairness-id": "b"}, BODY)
    tasks = [loop.create_task(picker.pick(forged)) for _ in range(20)]
    tasks.append(loop.create_task(picker.pick(Pick(HEADERS, BODY, tenant="b"))))
    async with asyncio.timeout(10):
        while picker.admitting.readings()["queue_requests"][1] < 21:
            await asyncio.sleep(0.005)
    fill(view, False)
    done, _ = await asyncio.wait(tasks)
    order = sorted(done, key=lambda task: task.result().placement.request.sequence)  # type: ignore[union-attr]
    placed = [task.result().placement for task in order]  # type: ignore[union-attr]
    assert placed[-1].entry.tenant == "b" and {each.entry.tenant for each in placed[:-1]} == {0}
    for each in placed:
        picker.release(each)
    picker.close()
