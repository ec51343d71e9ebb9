"""Sums of several pickers seen by one of them: as if all had been placed by it."""

import random

import numpy as np
import pytest

from picker.fleet.others import WINDOW_S
from picker.fleet.view import View
from picker.scheduling.decide import decide
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Worker, endpoint, fleet, slot_at

MODEL = WorkerModel()


def tell(teller: View, hearer: View, now: float) -> None:
    hearer.inflight.others.replace([(teller.inflight.share(teller.epochs, now), now)], hearer.slots_of, now)


def fleet_of(*epochs: int) -> View:
    view = View()
    for epoch in epochs:
        slot = view.admit(Worker(f"w{epoch}", epoch=epoch, endpoint=endpoint(epoch)), now=0.0)
        view.index.trust(slot, True)
    return view


def test_requests_of_others_count_as_our_own_do() -> None:
    first, second = fleet_of(1, 2, 3), fleet_of(3, 2, 1)
    for _ in range(4):
        first.inflight.book(slot_at(first, endpoint(2)), 0.5, 1000, None, now=10.0)
    second.inflight.book(slot_at(second, endpoint(2)), 0.25, 500, None, now=11.0)
    tell(first, second, 12.0)
    all_of_it, slot = second.inflight.outstanding(12.0), slot_at(second, endpoint(2))
    assert (all_of_it.requests[slot], all_of_it.context_tokens[slot]) == (5, 4500)
    assert all_of_it.prefill_s[slot] == pytest.approx(2.25)
    assert all_of_it.requests.sum() == 5
    together = fleet_of(1, 2, 3)
    here = slot_at(together, endpoint(2))
    for at, work in ((10.0, 0.5), (10.0, 0.5), (10.0, 0.5), (10.0, 0.5), (11.0, 0.25)):
        together.inflight.book(here, work, 1, None, now=at)
    for later in (12.0, 12.0 + WINDOW_S):
        expected = together.inflight.outstanding(later).utilisation[here]
        assert second.inflight.outstanding(later).utilisation[slot] == pytest.approx(expected, rel=1e-4)


def test_a_worker_owes_since_the_first_picker_waits_and_not_since_the_last() -> None:
    first, second = fleet_of(1), fleet_of(1)
    first.inflight.book(0 if first.known[0] else next(iter(first.slots())), 1.0, 1, None, now=10.0)
    [slot] = second.slots()
    second.inflight.book(slot, 1.0, 1, None, now=30.0)
    tell(first, second, 31.0)
    assert second.inflight.outstanding(31.0).progress_at[slot] == pytest.approx(10.0)


def test_a_first_token_that_another_picker_sees_is_progress() -> None:
    first, second = fleet_of(1), fleet_of(1)
    [there], [here] = first.slots(), second.slots()
    booking = first.inflight.book(there, 1.0, 1, None, now=10.0)
    second.inflight.book(here, 1.0, 1, None, now=10.0)
    first.inflight.first_token(booking, 25.0)
    tell(first, second, 26.0)
    assert second.inflight.outstanding(26.0).progress_at[here] == pytest.approx(25.0)


def test_a_worker_is_not_taken_for_slow_because_it_worked_for_another_picker() -> None:
    first, second = fleet_of(1), fleet_of(1)
    [there], [here] = first.slots(), second.slots()
    theirs = first.inflight.book(there, 4.0, 1, None, now=0.0)
    ours = second.inflight.book(here, 1.0, 1, None, now=0.0)
    first.inflight.first_token(theirs, 4.0)
    tell(first, second, 4.0)
    second.inflight.first_token(ours, 5.0)
    assert second.inflight.speed()[here] == pytest.approx(1.0)


def test_what_others_have_on_workers_that_we_do_not_know_counts_nowhere() -> None:
    first, second = fleet_of(1, 2), fleet_of(1)
    first.inflight.book(slot_at(first, endpoint(2)), 1.0, 100, None, now=0.0)
    tell(first, second, 1.0)
    assert second.inflight.outstanding(1.0).requests.sum() == 0


def test_nothing_is_left_of_others_that_are_gone() -> None:
    first, second = fleet_of(1), fleet_of(1)
    [there] = first.slots()
    first.inflight.book(there, 1.0, 100, None, now=0.0)
    tell(first, second, 1.0)
    second.inflight.others.clear()
    sums = second.inflight.outstanding(1.0)
    assert (sums.requests.sum(), sums.prefill_s.sum(), sums.utilisation.sum()) == (0, 0, 0)


def test_a_worker_that_takes_a_slot_again_begins_with_nothing_of_others() -> None:
    view = fleet(1, capacity=1)
    [slot] = view.slots()
    teller = fleet(1)
    [there] = teller.slots()
    teller.inflight.book(there, 1.0, 100, None, now=0.0)
    tell(teller, view, 1.0)
    view.retire(slot)
    view.sweep(2.0)
    assert view.admit(Worker("next", epoch=9), now=2.0) == slot
    assert view.inflight.outstanding(2.0).requests[slot] == 0


def test_sums_survive_a_view_that_grows() -> None:
    first, second = fleet(3), fleet(3, capacity=4)
    first.inflight.book(next(iter(first.slots())), 1.0, 100, None, now=0.0)
    tell(first, second, 1.0)
    before = second.inflight.outstanding(1.0).requests.sum()
    for number in range(10):
        second.admit(Worker(f"new{number}", epoch=100 + number), now=1.0)
    assert second.inflight.outstanding(1.0).requests.sum() == before > 0


def test_three_pickers_that_tell_each_other_place_as_one_does() -> None:
    """Requests in turn to three pickers, which hear of each other at once, against all of them to one."""
    wanted = [random.Random(7).randrange(200, 9000) for _ in range(60)]

    def place(views: list[View]) -> list[int]:
        loads = dict.fromkeys(range(1, 7), 0)
        for number, tokens in enumerate(wanted):
            view, now = views[number % len(views)], number * 0.01
            request = SchedulingRequest(number, prompt_tokens=tokens, expected_output_tokens=50)
            decision = decide(request, view, POLICIES["expected-delay"], MODEL, now, random.Random(1))
            assert isinstance(decision, Routed)
            view.inflight.book(decision.slots[0], decision.work_s, tokens, None, now)
            loads[view.facts(decision.slots[0]).epoch] += tokens
            for hearer in views:
                shares = [(teller.inflight.share(teller.epochs, now), now) for teller in views if teller is not hearer]
                hearer.inflight.others.replace(shares, hearer.slots_of, now)
        return sorted(loads.values())

    one = place([fleet_of(*range(1, 7))])
    three = place([fleet_of(*range(1, 7)) for _ in range(3)])
    assert np.allclose(one, three, rtol=0.15)
