"""Fences by worker and by epoch."""

from picker.fleet.fence import Fence
from picker.fleet.fences import Fences


def test_two_workers_of_one_epoch_have_a_fence_each_and_lose_only_their_own() -> None:
    good, forged = Fence("good", 7, slot=0), Fence("forged", 7, slot=1)
    fences = Fences([good, forged])
    assert fences.of_epoch(7) == (good, forged)
    fences.drop("forged", 7)
    assert fences.of_epoch(7) == (good,)
    assert fences.get("good", 7) is good
    assert forged not in fences


def test_a_fence_that_takes_anothers_place_is_the_only_one_there() -> None:
    old, new = Fence("w", 7, slot=0), Fence("w", 7, slot=1)
    fences = Fences([old, new])
    assert old not in fences
    assert list(fences) == [new]
    assert fences.of_epoch(7) == (new,)


def test_nothing_is_left_of_fences_that_were_dropped() -> None:
    fences = Fences([Fence("w", 7, slot=0)])
    fences.drop("w", 7)
    fences.drop("w", 7)
    assert not list(fences)
    assert fences.of_epoch(7) == ()
