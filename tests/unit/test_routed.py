"""Placements on their way to other pickers."""

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.index import PlacedBlocks, depths
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


@given(st.integers(1, 60), st.integers(1, 20), st.integers(1, 40))
def test_a_prompt_told_in_parts_is_remembered_as_one_told_whole(length: int, part: int, room: int) -> None:
    chain = [1000 + block for block in range(length)]
    log = RoutedLog()
    log.add(7, False, chain)
    in_parts, whole = PlacedBlocks(60.0, room), PlacedBlocks(60.0, room)
    whole.place(0, chain, 0.0)
    while taken := log.take(part):
        assert sum(len(each.blocks) for each in taken) <= part
        for each in taken:
            in_parts.place(0, each.blocks, 0.0)
    assert depths(chain, in_parts.owners) == depths(chain, whole.owners)
