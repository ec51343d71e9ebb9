"""Time watched."""

import pytest

from picker.fleet.watch import Watch


def test_time_watched_goes_with_the_clock_while_polls_succeed() -> None:
    watch = Watch(100.0, longest_step_s=1.0)
    assert [watch.advance(at) for at in (100.5, 101.0, 101.5)] == [100.5, 101.0, 101.5]


def test_of_an_outage_one_step_counts() -> None:
    watch = Watch(100.0, longest_step_s=1.0)
    assert watch.advance(3700.0) == 101.0
    assert watch.advance(3700.25) == pytest.approx(101.25)
