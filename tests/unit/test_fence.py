"""The rules on sequence numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.fence import Arrival, Fence, FenceSettings

SETTINGS = FenceSettings(patience_s=1.0, first_retry_s=0.1, longest_retry_s=5.0)
DIGEST = (3, 0xABC)


def restarted(seq: int) -> Fence:
    fence = Fence("w", epoch=7, slot=0, settings=SETTINGS)
    fence.restart(seq)
    return fence


def test_nothing_counts_before_the_first_snapshot() -> None:
    fence = Fence("w", epoch=7, slot=0)
    assert fence.is_dirty
    assert fence.offer(1) is Arrival.AWAITED


@pytest.mark.parametrize(
    ("seq", "arrival", "after", "is_dirty"),
    [
        (11, Arrival.APPLY, 11, False),
        (10, Arrival.REPEAT, 10, False),
        (1, Arrival.REPEAT, 10, False),
        (12, Arrival.GAP, 10, True),
    ],
)
def test_only_the_next_event_is_applied(seq: int, arrival: Arrival, after: int, is_dirty: bool) -> None:
    fence = restarted(10)
    assert fence.offer(seq) is arrival
    assert (fence.seq, fence.is_dirty) == (after, is_dirty)


def test_after_a_gap_only_a_snapshot_helps() -> None:
    fence = restarted(10)
    fence.offer(12)
    assert fence.offer(11) is Arrival.AWAITED
    fence.restart(12)
    assert fence.offer(13) is Arrival.APPLY


def test_another_digest_at_the_same_event_is_believed_at_once() -> None:
    assert not restarted(10).agrees(10, DIGEST, (3, 0xABD), now=0.0)
    assert restarted(10).agrees(10, DIGEST, DIGEST, now=0.0)


def test_a_load_record_older_than_the_mirror_says_nothing() -> None:
    assert restarted(10).agrees(9, DIGEST, (9, 9), now=0.0)


def test_a_mirror_that_is_behind_has_time_to_catch_up() -> None:
    fence = restarted(10)
    assert fence.agrees(12, DIGEST, (0, 0), now=0.0)
    assert fence.agrees(12, DIGEST, (0, 0), now=0.9)
    assert not fence.agrees(12, DIGEST, (0, 0), now=1.0)


def test_a_mirror_that_moves_is_never_behind_for_long() -> None:
    fence = restarted(10)
    for step in range(20):
        assert fence.agrees(12 + 2 * step, DIGEST, (0, 0), now=0.5 * step)
        fence.offer(11 + 2 * step)
        fence.offer(12 + 2 * step)


def test_without_patience_being_behind_is_a_loss() -> None:
    assert not restarted(10).agrees(12, DIGEST, (0, 0), now=5.0, patience_s=0.0)


def test_attempts_grow_rarer_until_the_mirror_agrees() -> None:
    fence = restarted(10)
    waits = []
    for _ in range(8):
        fence.attempt(now=100.0)
        waits.append(round(fence.retry_at - 100.0, 3))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    fence.restart(10)
    fence.agrees(10, DIGEST, DIGEST, now=100.0)
    fence.attempt(now=100.0)
    assert round(fence.retry_at - 100.0, 3) == 0.1


@given(st.lists(st.integers(1, 8), max_size=40))
def test_whatever_is_delivered_the_applied_events_are_one_run_without_a_hole(deliveries: list[int]) -> None:
    fence = restarted(0)
    applied = [seq for seq in deliveries if fence.offer(seq) is Arrival.APPLY]
    assert applied == list(range(1, len(applied) + 1))
    assert fence.seq == len(applied)
