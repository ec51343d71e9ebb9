"""When a publisher writes: at once, or not too often, or for no reason but to be heard."""

from __future__ import annotations

import math

import pytest

from picker.agent.schedule import Schedule


@pytest.fixture
def schedule() -> Schedule:
    """All written at 100 s."""
    schedule = Schedule(coalesce_s=0.01, load_interval_s=0.1, heartbeat_s=1.0, snapshot_interval_s=30.0)
    schedule.note_written(100.0, renews=True, has_snapshot=True)
    return schedule


def test_what_has_never_been_written_is_due_now() -> None:
    schedule = Schedule(coalesce_s=0.01, load_interval_s=0.1, heartbeat_s=1.0, snapshot_interval_s=30.0)
    assert schedule.next_at == -math.inf
    assert schedule.renews(0.0)
    assert schedule.is_snapshot_old(0.0)


def test_an_idle_worker_is_heard_once_in_each_heartbeat(schedule: Schedule) -> None:
    assert schedule.next_at == 101.0


def test_events_wait_a_moment_for_more_and_later_ones_do_not_put_them_off(schedule: Schedule) -> None:
    assert schedule.note_events(100.2)
    assert not schedule.note_events(100.205)
    assert schedule.next_at == pytest.approx(100.21)


def test_a_load_is_written_no_more_often_than_its_interval_says(schedule: Schedule) -> None:
    schedule.note_load()
    assert schedule.next_at == pytest.approx(100.1)


def test_a_write_takes_all_that_waited(schedule: Schedule) -> None:
    schedule.note_events(100.2)
    schedule.note_load()
    schedule.note_written(100.3, renews=True, has_snapshot=False)
    assert schedule.next_at == pytest.approx(101.3)


def test_events_of_an_epoch_that_is_over_are_not_waited_for(schedule: Schedule) -> None:
    schedule.note_events(100.2)
    schedule.drop_events()
    assert schedule.next_at == 101.0


def test_one_of_many_writes_renews_the_lease(schedule: Schedule) -> None:
    schedule.note_written(100.05, renews=schedule.renews(100.05), has_snapshot=False)
    assert schedule.heartbeat_at == 101.0
    assert schedule.renews(100.15)


def test_after_a_failure_the_next_write_is_due_at_once(schedule: Schedule) -> None:
    schedule.renew_at_once()
    assert schedule.next_at == -math.inf


def test_a_snapshot_grows_old(schedule: Schedule) -> None:
    schedule.note_written(110.0, renews=True, has_snapshot=False)
    assert not schedule.is_snapshot_old(129.0)
    assert schedule.is_snapshot_old(130.0)
