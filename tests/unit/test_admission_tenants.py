"""A tenant that asks for far more than the others: what they have had, what is kept for them, who is looked at."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from picker.admission.control import Admission, Admitted
from picker.admission.entry import Entry
from picker.admission.settings import AdmissionSettings, Gate, Room
from picker.admission.usage import WINDOW_S, Usage
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import fleet


def usage(weights: dict[str, float] | None = None, **served: float) -> Usage:
    found = Usage(lambda tenant: (weights or {}).get(str(tenant), 1.0))
    for tenant, tokens in served.items():
        found.served(tenant, tokens, 0.0)
    return found


class TestUsage:
    def test_who_has_had_most_is_ahead_and_who_has_had_little_is_not(self) -> None:
        found = usage(heavy=600, a=50, b=50)
        assert found.is_ahead("heavy")
        assert not any(map(found.is_ahead, ("a", "b", "new")))

    def test_one_tenant_alone_is_not_ahead_of_anybody(self) -> None:
        assert not usage(only=1e9).is_ahead("only")

    def test_who_may_have_more_is_ahead_later(self) -> None:
        assert not usage({"heavy": 12.0}, heavy=600, a=51, b=50).is_ahead("heavy")

    def test_between_two_the_one_who_has_most_of_all_is_ahead(self) -> None:
        assert usage(heavy=950, light=50).is_ahead("heavy")
        assert not usage(one=500, two=520).is_ahead("two")

    def test_what_was_served_long_ago_counts_less(self) -> None:
        found = usage(early=1000)
        found.served("late", 200, 3 * WINDOW_S)
        assert not found.is_ahead("early") and found.is_ahead("late")

    @given(
        st.lists(
            st.tuples(st.sampled_from("abc"), st.integers(1, 10_000), st.floats(0, 40 * WINDOW_S)),
            min_size=1,
            max_size=40,
        )
    )
    def test_it_is_what_adding_up_would_give(self, served: list[tuple[str, int, float]]) -> None:
        found, plain, now = usage(), dict.fromkeys("abc", 0.0), 0.0
        for tenant, tokens, seconds in served:
            now += seconds
            plain = {name: amount * np.exp(-seconds / WINDOW_S) for name, amount in plain.items()}
            plain[tenant] += tokens
            found.served(tenant, tokens, now)
        for tenant, amount in plain.items():
            others = [each for name, each in plain.items() if name != tenant]
            if sum(others) < 10:
                continue
            limit = 1.3 * sum(each**2 for each in others) / sum(others)
            # What is on the edge may fall on either side.
            if abs(amount - limit) > 0.01 * limit + 2:
                assert found.is_ahead(tenant) == (amount > limit)

    def test_tenants_that_were_served_long_ago_are_forgotten(self) -> None:
        found = Usage(lambda tenant: 1.0)
        for number in range(1000):
            found.served(number, 10.0, 60.0 * number)
        assert len(found._used) < 50


def admission(slots: list[int], view: object, room: Room) -> Admission:
    """Each request names its worker by its number."""

    def decide(wanted: SchedulingRequest, now: float) -> tuple[Routed, None]:
        slot = slots[wanted.sequence]
        known = np.ones(1, bool)
        return Routed((slot,), ("10.0.0.1:8000",), 0, 0.1, "test", {}, np.zeros(1, np.int64), known, ()), None

    settings = AdmissionSettings(room=room, gate=Gate(residence_s=0), detour_s=0)
    return Admission(settings, view, WorkerModel(), decide, lambda: 0.5)  # type: ignore[arg-type]


def asked(tenant: str, worker: int, rank: int = 1) -> Entry:
    return Entry(SchedulingRequest(worker, prompt_tokens=1000), rank=rank, tenant=tenant, leave_at=99.0, cost=1000)


def test_the_last_of_a_workers_room_is_for_tenants_who_have_had_less() -> None:
    view = fleet(1)
    slots = list(view.slots())
    desk = admission(slots, view, Room(kv_used=0.9, kept=0.1))
    desk.usage.served("heavy", 10_000, 0.0)
    desk.usage.served("light", 1_000, 0.0)
    view.kv_used[slots[0]] = 0.85
    assert desk.arrive(asked("heavy", 0), 0.0) is None
    assert desk.arrive(asked("light", 0), 0.0) is None
    assert [entry.tenant for entry, _ in desk.dispatch(0.0)] == ["light"]
    view.kv_used[slots[0]] = 0.80
    assert [entry.tenant for entry, _ in desk.dispatch(0.0)] == ["heavy"]


def test_the_last_of_a_workers_room_is_for_the_higher_class_while_it_asks() -> None:
    view = fleet(1)
    slots = list(view.slots())
    desk = admission(slots, view, Room(kv_used=0.9, kept=0.1))
    view.kv_used[slots[0]] = 0.85
    assert isinstance(desk.arrive(asked("a", 0), 0.0), Admitted)
    assert isinstance(desk.arrive(asked("a", 0, rank=0), 1.0), Admitted)
    assert desk.arrive(asked("a", 0), 2.0) is None
    assert desk.arrive(asked("a", 0, rank=0), 3.0) is None
    assert [entry.rank for entry, _ in desk.dispatch(3.0)] == [0]
    assert [entry.rank for entry, _ in desk.dispatch(4.0 + WINDOW_S)] == [1]


def test_requests_whose_workers_are_busy_hide_nobody_elses_whose_worker_is_not() -> None:
    view = fleet(2)
    slots = list(view.slots())
    desk = admission(slots, view, Room())
    view.kv_used[slots[0]] = 1.0
    for _ in range(100):
        assert desk.arrive(asked("many", 0), 0.0) is None
    first = asked("few", 0)
    assert desk.arrive(first, 0.0) is None
    # By what they have had it is the turn of each of the hundred before.
    desk.waiting.charge(first, 1e6)
    few = asked("few", 1)
    assert desk.arrive(few, 0.0) is None
    [(entry, verdict)] = desk.dispatch(0.0)
    assert entry is few and isinstance(verdict, Admitted)
