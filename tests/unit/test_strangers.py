"""Requests that workers report and no picker has booked."""

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.strangers import Strangers


def test_the_first_report_counts_whole() -> None:
    found = Strangers(4)
    found.reported(2, reported=40, booked=0)
    assert found.requests.tolist() == [0, 0, 40, 0]
    assert found.total == 40


def test_a_request_that_has_ended_since_the_report_is_no_stranger() -> None:
    found = Strangers(4)
    for reported, booked in ((5, 5), (5, 4), (4, 4), (4, 3)):
        found.reported(0, reported, booked)
        assert found.total == 0


def test_what_two_reports_show_is_believed_and_forgotten_when_one_does_not() -> None:
    found = Strangers(4)
    for reported, expected in ((0, 0), (3, 0), (4, 3), (2, 2), (0, 0)):
        found.reported(0, reported, booked=0)
        assert found.total == expected


def test_a_new_worker_has_none() -> None:
    found = Strangers(4)
    found.reported(1, 7, 0)
    found.reset(1)
    assert found.total == 0
    found.grow(8)
    found.reported(7, 2, 0)
    assert found.requests.tolist() == [0] * 7 + [2]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9))))
def test_the_total_is_the_sum_and_nothing_is_negative(script: list[tuple[int, int, int]]) -> None:
    found = Strangers(4)
    for slot, reported, booked in script:
        found.reported(slot, reported, booked)
        assert found.total == found.requests.sum()
        assert (found.requests >= 0).all()
