"""Chance from a number."""

from collections import Counter

from picker.ties import Ties


def test_the_same_number_tells_the_same_ties() -> None:
    ties = Ties()
    drawn = []
    for _ in range(2):
        ties.start(7)
        drawn.append([ties.random(), ties.sample(range(100), 3), ties.random()])
    assert drawn[0] == drawn[1]


def test_neighbouring_numbers_spread_evenly_over_what_is_equal() -> None:
    ties, chosen = Ties(), Counter[int]()
    for number in range(8000):
        ties.start(number)
        chosen[ties.sample(range(8), 1)[0]] += 1
    assert all(850 < count < 1150 for count in chosen.values()), chosen


def test_numbers_lie_in_their_range() -> None:
    ties = Ties(1)
    assert all(0 <= ties.random() < 1 and 0 <= ties.getrandbits(3) < 8 and ties.getrandbits(0) == 0 for _ in range(99))
