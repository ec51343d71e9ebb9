"""Workers that fail in a row are left out, and tried again by one request at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.breakers import Breakers

FAILURES, PAUSE_S, MOST_S = 3, 5.0, 20.0


def breakers(capacity: int = 4) -> Breakers:
    return Breakers(capacity, FAILURES, PAUSE_S, MOST_S)


def opened(slot: int = 1, now: float = 0.0) -> Breakers:
    made = breakers()
    for _ in range(FAILURES):
        made.answered(slot, 500, now)
    return made


def passes(made: Breakers, slot: int, now: float) -> bool:
    passing = made.passing(now)
    return passing is None or bool(passing[slot])


def test_failures_in_a_row_open_it_and_others_stay_closed() -> None:
    made = breakers()
    for _ in range(FAILURES - 1):
        made.failed(1, 0.0)
    assert made.passing(0.0) is None
    made.failed(1, 0.0)
    assert [passes(made, slot, 0.0) for slot in range(4)] == [True, False, True, True]


def test_an_answer_in_between_starts_the_count_anew() -> None:
    made = breakers()
    for status in (500, 503, 200, 500, 503):
        made.answered(1, status, 0.0)
    assert made.open == 0


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 429, 501])
def test_what_is_no_fault_of_the_worker_opens_nothing(status: int) -> None:
    made = breakers()
    for _ in range(50):
        made.answered(1, status, 0.0)
    assert made.open == 0


def test_after_the_pause_one_request_may_try_for_each_further_pause() -> None:
    made = opened()
    assert not passes(made, 1, PAUSE_S - 0.1)
    assert passes(made, 1, PAUSE_S)
    made.tried(1, PAUSE_S)
    assert not passes(made, 1, PAUSE_S + 0.1)
    assert passes(made, 1, 2 * PAUSE_S)


def test_an_answer_closes_it() -> None:
    made = opened()
    made.tried(1, PAUSE_S)
    made.answered(1, 200, PAUSE_S + 0.2)
    assert made.open == 0
    assert passes(made, 1, PAUSE_S + 0.2)


def test_each_further_failure_doubles_the_pause_up_to_a_bound() -> None:
    made, now = opened(), 0.0
    for pause in (2 * PAUSE_S, MOST_S, MOST_S):
        now += MOST_S
        made.failed(1, now)
        assert not passes(made, 1, now + pause - 0.1)
        assert passes(made, 1, now + pause)


def broken(made: Breakers, count: int, now: float = 0.0) -> None:
    for _ in range(count):
        made.answered(1, 200, now)
        made.ended(1, True, now)


def test_answers_that_begin_well_and_break_off_in_a_row_open_it() -> None:
    made = breakers()
    broken(made, FAILURES - 1)
    assert made.open == 0 and made.is_suspicious
    made.ended(1, False, 0.0)
    assert not made.is_suspicious
    broken(made, FAILURES)
    assert not passes(made, 1, PAUSE_S - 0.1) and passes(made, 1, PAUSE_S)
    made.tried(1, PAUSE_S)
    broken(made, 1, PAUSE_S)
    assert not passes(made, 1, 2 * PAUSE_S - 0.1)
    made.reset(1)
    assert made.open == 0 and not made.is_suspicious


def test_a_new_worker_in_the_slot_starts_with_a_closed_one() -> None:
    made = opened()
    made.reset(1)
    assert passes(made, 1, 0.0)
    made.failed(1, 0.0)
    assert made.open == 0


def test_it_grows() -> None:
    made = opened()
    made.grow(8)
    assert not passes(made, 1, 0.0)
    assert passes(made, 7, 0.0)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([200, 404, 500, None]), st.floats(0, 30))))
def test_whatever_happens_every_worker_gets_a_try_in_bounded_time(script: list[tuple[int, int | None, float]]) -> None:
    made, now = breakers(), 0.0
    for slot, status, wait_s in script:
        now += wait_s
        if status is None:
            made.tried(slot, now)
        else:
            made.answered(slot, status, now)
        assert all(passes(made, each, now + MOST_S) for each in range(4))
