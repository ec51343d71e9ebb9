"""The memo that is bounded in bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from picker.prompts.memo import OVERHEAD_BYTES, Memo

VALUE = b"0123456789"
ENTRY = OVERHEAD_BYTES + len(VALUE)


def keys(*numbers: int) -> list[bytes]:
    return [number.to_bytes(2, "big") for number in numbers]


def filled(count: int, room: int) -> Memo:
    memo = Memo(room * ENTRY)
    memo.put((key, VALUE) for key in keys(*range(count)))
    return memo


def held(memo: Memo, *numbers: int) -> list[bool]:
    return [memo.get(key) == VALUE for key in keys(*numbers)]


def test_what_was_put_is_got_and_nothing_else() -> None:
    memo = filled(2, room=2)
    assert held(memo, 0, 1, 2) == [True, True, False]
    assert (memo.statistics().hits, memo.statistics().misses) == (2, 1)


def test_it_never_holds_more_than_its_bytes() -> None:
    statistics = filled(100, room=7).statistics()
    assert (statistics.entries, statistics.bytes, statistics.evictions) == (7, 7 * ENTRY, 93)


def test_of_what_is_put_together_the_first_stays_the_longest() -> None:
    assert len(filled(5, room=3).leading(keys(0, 1, 2, 3))) == 3


def test_what_was_asked_for_stays() -> None:
    memo = filled(3, room=3)
    memo.get(keys(2)[0])
    memo.put([(b"new", VALUE)])
    memo.put([(b"newer", VALUE)])
    assert held(memo, 0, 1, 2) == [False, False, True]


def test_a_chain_loses_its_end_first() -> None:
    memo = filled(4, room=4)
    memo.leading(keys(0, 1, 2, 3))
    memo.put([(b"new", VALUE)])
    assert len(memo.leading(keys(0, 1, 2, 3))) == 3


def test_touching_keeps_a_chain_as_asking_does() -> None:
    memo = filled(2, room=4)
    memo.put([(b"x", VALUE), (b"y", VALUE)])
    memo.touch([*keys(0, 1), b"gone"])
    memo.put([(b"z", VALUE), (b"zz", VALUE)])
    assert len(memo.leading(keys(0, 1))) == 2


def test_leading_stops_at_the_first_gap() -> None:
    assert len(filled(3, room=3).leading(keys(0, 7, 1))) == 1


def test_a_value_that_is_put_again_counts_once() -> None:
    memo = filled(1, room=3)
    memo.put([(keys(0)[0], b"other")])
    assert (memo.get(keys(0)[0]), memo.statistics().bytes) == (b"other", OVERHEAD_BYTES + 5)


def test_without_room_nothing_is_held() -> None:
    memo = filled(3, room=0)
    assert memo.statistics().entries == memo.statistics().bytes == 0


def test_threads_do_not_spoil_its_account() -> None:
    memo = Memo(50 * ENTRY)

    def work(seed: int) -> None:
        for number in range(2000):
            memo.put([(keys((seed * 31 + number * 7) % 97)[0], VALUE)])
            memo.leading(keys(number % 97, (number + 1) % 97))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    statistics = memo.statistics()
    assert statistics.bytes == statistics.entries * ENTRY <= 50 * ENTRY
