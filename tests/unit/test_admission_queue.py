"""The queue of admission against a plain model of it: bounds, nobody lost, nobody served twice, fairness."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from picker.admission.control import Admission, Admitted
from picker.admission.entry import Entry
from picker.admission.fair import FairQueue
from picker.admission.lane import Lane
from picker.admission.refusals import Cause, Turned
from picker.admission.settings import AdmissionSettings, Bounds, ClassSettings, Gate
from picker.admission.waiting import MOST_LANES, WaitingRoom
from picker.fleet.view import View
from picker.scheduling.decision import Decision, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import fleet

SETTINGS = AdmissionSettings(
    classes=(
        ClassSettings(name="high", priority=1, max_wait_s=8.0),
        ClassSettings(name="default", share=0.2, max_wait_s=4.0, fill=0.8),
        ClassSettings(name="low", priority=-1, share=0.1, max_wait_s=6.0, fill=0.5, bounds=Bounds(requests=4)),
    ),
    tenant=Bounds(requests=5),
    total=Bounds(requests=12, bytes=2000, tokens=9000),
    displace=True,
    scan=2,
    detour_s=0,
    gate=Gate(residence_s=0),
)
TENANTS = ("a", "b", 3, 4)
LANES = 3


def request(tokens: int, lane: int = 0) -> SchedulingRequest:
    return SchedulingRequest(lane, prompt_tokens=tokens)


def entry(tenant: str | int = "a", cost: float = 100.0, **rest: object) -> Entry:
    return Entry(request(int(cost)), tenant=tenant, cost=cost, **rest)  # type: ignore[arg-type]


def routed(slot: int) -> Routed:
    known = np.ones(1, bool)
    return Routed((slot,), (f"10.0.0.{slot}:8000",), 0, 0.1, "test", {}, np.zeros(1, np.int64), known, ())


class Queue(RuleBasedStateMachine):
    """Requests come, go to the worker of their lane, give up or are refused, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.waiting: dict[int, Entry] = {}
        self.over: set[int] = set()
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.view = fleet(LANES)
        self.slots = list(self.view.slots())
        self.admission = Admission(SETTINGS, self.view, WorkerModel(), self.decide, lambda: 0.5)

    def decide(self, wanted: SchedulingRequest, now: float) -> tuple[Decision, None]:
        return routed(self.slots[wanted.sequence]), None

    @rule(lane=st.integers(0, LANES - 1), has_room=st.booleans())
    def room(self, lane: int, has_room: bool) -> None:
        self.view.kv_used[self.slots[lane]] = 0.0 if has_room else 1.0

    @rule(
        rank=st.integers(0, 2),
        lane=st.integers(0, LANES - 1),
        tenant=st.sampled_from(TENANTS),
        size=st.integers(0, 600),
        tokens=st.integers(1, 3000),
        patience=st.floats(0.1, 10),
    )
    def arrive(self, rank: int, lane: int, tenant: str | int, size: int, tokens: int, patience: float) -> None:
        each = Entry(request(tokens, lane), rank, lane, tenant, size, self.now, self.now + patience, ticket=self.count)
        each.cost = tokens
        self.count += 1
        verdict = self.admission.arrive(each, self.now)
        if verdict is None:
            self.waiting[each.ticket] = each
        else:
            assert not each.is_waiting
            self.finish(each, verdict)

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0))
    def give_up(self, pick: int) -> None:
        ticket = list(self.waiting)[pick % len(self.waiting)]
        gone = self.waiting.pop(ticket)
        self.over.add(ticket)
        self.admission.leave(gone)
        self.admission.leave(gone)

    @rule(seconds=st.floats(0, 2), most=st.integers(0, 5))
    def dispatch(self, seconds: float, most: int) -> None:
        """Each worker has room for some more, and time passes."""
        self.now += seconds
        served = [0] * LANES
        for each, verdict in self.admission.dispatch(self.now):
            assert self.waiting.pop(each.ticket) is each
            self.finish(each, verdict)
            if isinstance(verdict, Admitted):
                lane = each.request.sequence
                assert self.view.kv_used[self.slots[lane]] < 1
                served[lane] += 1
                if served[lane] > most:
                    self.view.kv_used[self.slots[lane]] = 1.0
        assert all(each.until > self.now for each in self.waiting.values())
        # Whoever still waits has no room: nobody waits for nothing.
        assert all(self.view.kv_used[self.slots[each.request.sequence]] == 1 for each in self.waiting.values())

    def finish(self, each: Entry, verdict: object) -> None:
        assert each.ticket not in self.over, "answered twice, or after it had gone"
        self.over.add(each.ticket)
        if isinstance(verdict, Turned) and verdict.cause is Cause.TIMEOUT:
            assert each.until <= self.now

    @invariant()
    def the_sums_are_those_of_the_model(self) -> None:
        total = self.admission.waiting.total
        waiting = list(self.waiting.values())
        displaced = [each for each in waiting if not each.is_waiting]
        assert all(each.rank > 0 for each in displaced)
        held = [each for each in waiting if each.is_waiting]
        assert total.requests == len(held)
        assert total.bytes == sum(each.size for each in held)
        assert total.tokens == sum(each.tokens for each in held)

    @invariant()
    def no_bound_is_exceeded(self) -> None:
        held = [each for each in self.waiting.values() if each.is_waiting]
        total = SETTINGS.total
        assert len(held) <= (total.requests or 0)
        if len(held) > 1:
            assert sum(each.size for each in held) <= (total.bytes or 0)
            assert sum(each.tokens for each in held) <= (total.tokens or 0)
        assert sum(each.rank == 2 for each in held) <= 4
        for tenant in TENANTS:
            for rank in range(3):
                assert sum((each.tenant, each.rank) == (tenant, rank) for each in held) <= 5

    def teardown(self) -> None:
        if not hasattr(self, "admission"):
            return
        for each, _ in (*self.admission.dispatch(self.now), *self.admission.drain()):
            assert self.waiting.pop(each.ticket) is each
            self.finish(each, None)
        assert not self.waiting
        assert self.over == set(range(self.count))
        assert len(self.admission.waiting) == 0


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def served(queue: FairQueue, count: int) -> Iterator[Entry]:
    for _ in range(count):
        each = queue.take()
        assert each is not None
        queue.serve(each, each.cost)
        yield each


COSTS = st.lists(st.integers(1, 1000), min_size=10, max_size=25)


@given(
    costs=st.dictionaries(st.sampled_from("abcd"), COSTS, min_size=2),
    weights=st.fixed_dictionaries({name: st.sampled_from((0.5, 1.0, 3.0)) for name in "abcd"}),
)
@settings(deadline=None)
def test_tenants_that_wait_all_the_time_are_served_alike_but_for_one_request_of_each(
    costs: dict[str, list[int]], weights: dict[str, float]
) -> None:
    queue = FairQueue(lambda tenant: weights[str(tenant)])
    for tenant, each in costs.items():
        for number, cost in enumerate(each):
            one = entry(tenant, float(cost))
            one.number, one.is_waiting = number, True
            queue.add(one)
    got = dict.fromkeys(costs, 0.0)
    most = {tenant: max(each) / weights[tenant] for tenant, each in costs.items()}
    left = {tenant: len(each) for tenant, each in costs.items()}
    while all(left.values()):
        [each] = served(queue, 1)
        tenant = str(each.tenant)
        got[tenant] += each.cost / weights[tenant]
        left[tenant] -= 1
        assert all(abs(got[a] - got[b]) <= most[a] + most[b] + 1e-6 for a in got for b in got)


def add(queue: FairQueue | Lane, each: Entry, number: int) -> Entry:
    each.number, each.is_waiting = number, True
    queue.add(each)
    return each


def test_a_tenant_that_comes_late_gets_no_credit_for_the_past() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    for number in range(40):
        add(queue, entry("early"), number)
    list(served(queue, 20))
    for number in range(20):
        add(queue, entry("late"), 100 + number)
    following = [each.tenant for each in served(queue, 20)]
    assert 9 <= following.count("early") <= 11


def test_a_tenant_that_goes_away_does_not_come_back_without_its_debt() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    add(queue, entry("heavy", 5000.0), 0)
    add(queue, entry("light"), 1)
    [first] = served(queue, 1)
    assert first.tenant == "heavy"
    for number in range(20):
        add(queue, entry("light"), 10 + number)
    add(queue, entry("heavy"), 50)
    assert "heavy" not in [each.tenant for each in served(queue, 20)]


def test_what_a_request_has_cost_in_truth_counts() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    for number in range(20):
        add(queue, entry("long answers"), number)
        add(queue, entry("short answers"), 100 + number)
    list(served(queue, 2))
    queue.charge("long answers", 400)
    assert [each.tenant for each in served(queue, 4)] == ["short answers"] * 4


def test_within_a_tenant_the_earliest_deadline_goes_first_and_then_who_came_first() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    for number, due in enumerate((9.0, 3.0, 3.0, 5.0)):
        add(queue, entry(first_token_by=due), number)
    assert [each.number for each in served(queue, 4)] == [1, 2, 3, 0]


def test_what_is_put_back_is_where_it_was() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    for number, tenant in enumerate("abab"):
        add(queue, entry(tenant), number)
    taken = [queue.take() for _ in range(3)]
    # Looking on goes to the next tenant, not to the same one's next request.
    assert [each.tenant for each in taken if each] == ["a", "b", "a"]
    for each in taken:
        assert each
        queue.put_back(each)
    following = [(each.tenant, each.number) for each in served(queue, 4)]
    assert [number for tenant, number in following if tenant == "a"] == [0, 2]
    assert {tenant for tenant, _ in following[:2]} == {"a", "b"}
    assert queue.take() is None


def test_memory_of_tenants_that_are_gone_is_given_back() -> None:
    queue = FairQueue(lambda tenant: 1.0)
    for number in range(10_000):
        add(queue, entry(number), number)
        list(served(queue, 1))
    assert len(queue._flows) < 200
    assert len(queue._ready) < 500


def test_requests_that_gave_up_do_not_pile_up() -> None:
    room = WaitingRoom([0.0], lambda tenant: 1.0)
    stays = Entry(request(1), leave_at=1e9)
    room.add(stays)
    for _ in range(10_000):
        gone = Entry(request(1), leave_at=1e9)
        room.add(gone)
        assert room.leave(gone)
    [lane] = room._lanes.values()
    [flow] = lane._queues[0]._flows.values()
    assert len(room._leaving) < 200
    assert len(flow.heap) < 200
    assert len(room) == 1


def test_lanes_are_bounded() -> None:
    room = WaitingRoom([0.0], lambda tenant: 1.0)
    for number in range(2 * MOST_LANES):
        room.add(Entry(request(1), lane=number))
    assert len(room._lanes) <= MOST_LANES + 1
    assert len(list(room.everybody())) == 2 * MOST_LANES


class TestClasses:
    """Lanes: classes above one another."""

    def lane(self, *shares: float) -> Lane:
        return Lane(shares, lambda tenant: 1.0)

    def fill(self, lane: Lane, rank: int, count: int) -> None:
        for number in range(count):
            add(lane, entry(rank=rank), 1000 * rank + number)

    def serve(self, lane: Lane, count: int) -> list[int]:
        ranks = []
        for _ in range(count):
            rank = lane.turn()
            assert rank is not None
            each = lane.take(rank)
            assert each is not None
            lane.serve(each, each.cost)
            ranks.append(rank)
        return ranks

    def test_the_highest_class_goes_first(self) -> None:
        lane = self.lane(0.0, 0.0)
        self.fill(lane, 1, 3)
        self.fill(lane, 0, 3)
        assert self.serve(lane, 6) == [0, 0, 0, 1, 1, 1]

    def test_a_class_with_a_share_gets_it_whatever_waits_above(self) -> None:
        lane = self.lane(0.0, 0.2, 0.1)
        for rank in range(3):
            self.fill(lane, rank, 500)
        ranks = self.serve(lane, 300)
        assert ranks.count(1) == pytest.approx(60, abs=3)
        assert ranks.count(2) == pytest.approx(30, abs=3)

    def test_a_share_is_not_earned_in_advance_nor_by_the_highest(self) -> None:
        lane = self.lane(0.0, 0.5)
        self.fill(lane, 1, 150)
        self.serve(lane, 100)
        self.fill(lane, 0, 20)
        assert self.serve(lane, 20).count(1) == pytest.approx(10, abs=1)
        lane = self.lane(0.0, 0.5)
        self.fill(lane, 0, 100)
        self.serve(lane, 80)
        self.fill(lane, 1, 50)
        assert self.serve(lane, 10).count(1) <= 5

    def test_a_class_that_was_served_alone_owes_nothing(self) -> None:
        lane = self.lane(0.0, 0.0)
        self.fill(lane, 1, 200)
        self.serve(lane, 100)
        self.fill(lane, 0, 1)
        assert self.serve(lane, 3) == [0, 1, 1]


def test_a_lane_without_room_does_not_hold_up_another(view: View) -> None:
    slots = list(view.slots())
    admission = Admission(
        SETTINGS, view, WorkerModel(), lambda wanted, now: (routed(slots[wanted.sequence]), None), lambda: 0.0
    )
    view.kv_used[slots[0]] = 1.0
    for _ in range(5):
        assert admission.arrive(Entry(request(100, 0), 1, lane=0, tenant="a", leave_at=9.0), 0.0) is None
    assert isinstance(admission.arrive(Entry(request(100, 1), 1, lane=1, leave_at=9.0), 0.0), Admitted)


@pytest.fixture
def view() -> View:
    return fleet(2)
