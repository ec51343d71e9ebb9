"""Placements on their way to other pickers."""

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.routed import RoutedLog


def test_placements_come_out_in_order_and_once() -> None:
    log = RoutedLog()
    log.add(7, True, [1, 2])
    log.add(8, False, [3])
    assert [tuple(each) for each in log.take(100)] == [(7, True, [1, 2]), (8, False, [3])]
    assert log.take(100) == []


def test_a_prompt_without_blocks_is_nothing_to_tell() -> None:
    log = RoutedLog()
    log.add(7, True, [])
    assert log.take(100) == []


def test_what_nobody_fetches_is_lost_the_oldest_first() -> None:
    log = RoutedLog(most_blocks=10)
    for number in range(8):
        log.add(number, True, [number] * 3)
    assert [each.epoch for each in log.take(100)] == [5, 6, 7]
    assert log.lost == 5


def test_of_a_long_prompt_the_head_is_told() -> None:
    log = RoutedLog(most_blocks_each=3)
    log.add(7, True, range(100))
    assert list(log.take(100)[0].blocks) == [0, 1, 2]


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 40))
def test_all_is_told_and_little_at_a_time(lengths: list[int], most: int) -> None:
    log = RoutedLog()
    for number, length in enumerate(lengths):
        log.add(number, False, [number] * length)
    told = []
    while taken := log.take(most):
        assert len(taken) == 1 or sum(len(each.blocks) for each in taken) <= most
        told += taken
    assert [len(each.blocks) for each in told] == lengths
    assert len(log) == 0
