"""Who is cut for a higher class: the lowest class, the last that came, one at a time, and nobody for his own class."""

from __future__ import annotations

from picker.admission.control import Admitted
from picker.admission.preemption import Preemption
from tests.unit.desks import Desk, chain
from tests.unit.fleets import fleet


def preemption(**ranks: int) -> Preemption:
    found = Preemption(pause_s=1.0)
    for request, rank in ranks.items():
        found.placed(request, 0, rank, after_s=0.5)
    return found


def test_the_lowest_class_gives_way_first_and_in_it_who_came_last() -> None:
    found = preemption(a=2, b=3, c=3, d=2)
    cut = []
    for second in range(5):
        found.wanted(0, 1, 9.0)
        for victim in found.victims(float(second)):
            found.gone(victim)
            cut.append(victim)
    assert cut == ["c", "b", "d", "a"]
    assert len(found) == 0


def test_nobody_gives_way_to_his_own_class_or_to_one_that_has_not_waited_long_enough() -> None:
    found = preemption(a=2)
    found.wanted(0, 2, 9.0)
    assert list(found.victims(0.0)) == []
    found.wanted(0, 1, 0.4)
    assert list(found.victims(0.0)) == []
    found.wanted(1, 1, 9.0)
    assert list(found.victims(0.0)) == []


def test_one_cut_makes_room_before_the_next() -> None:
    found = preemption(a=2, b=2)
    cuts = []
    for tenth in range(12):
        found.wanted(0, 0, 9.0)
        cuts += [(tenth, victim) for victim in found.victims(tenth / 10)]
    assert cuts == [(0, "b"), (10, "b")]


def test_who_is_being_answered_is_not_cut_and_nobody_is_who_is_not_waited_for_any_longer() -> None:
    found = preemption(a=2)
    found.gone("a")
    found.gone("a")
    found.wanted(0, 0, 9.0)
    assert list(found.victims(0.0)) == []
    found.placed("b", 0, 2, after_s=0.0)
    found.wanted(0, 0, 9.0)
    assert list(found.victims(0.0)) == ["b"]
    assert list(found.victims(9.0)) == []


def test_a_request_that_is_passed_over_wants_the_worker_that_it_would_go_to() -> None:
    desk = Desk(fleet(1))
    [slot] = desk.view.slots()
    placed = desk.entry(16_000, chain(1, 16_000), rank=2)
    assert isinstance(desk.arrive(placed, 0.0), Admitted)
    desk.admission.preemption.placed("batch", slot, 2, after_s=0.5)
    assert desk.arrive(desk.entry(rank=0), 0.0) is None
    desk.dispatch(0.1)
    assert list(desk.admission.preemption.victims(0.1)) == []
    desk.dispatch(0.6)
    assert list(desk.admission.preemption.victims(0.6)) == ["batch"]
