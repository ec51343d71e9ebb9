"""Seats and who sits in them."""

from picker.fleet.peers import Peers
from picker.redisview.share_records import SHARE_BYTES
from tests.unit.test_sharing_records import share


def peers(own: int = 1, seats: int = 4) -> Peers:
    return Peers(own, seats, min)


def heard(peer: Peers) -> list[int]:
    return sorted(int(sums.requests.sum()) for sums, _ in peer.sums())


def test_the_others_are_heard_and_we_are_not() -> None:
    us = peers(own=1)
    us.hear({0: share((9, 3, 0.0), picker=1).pack(), 2: share((9, 5, 0.0), picker=2).pack()}, 0.0)
    assert heard(us) == [5]


def test_one_who_has_moved_counts_once_and_as_it_is_now() -> None:
    us = peers()
    us.hear({n: share((9, n, 0.0), picker=2, beat=n).pack() for n in (1, 3, 2)}, 0.0)
    assert heard(us) == [3]


def test_what_has_not_changed_is_as_old_as_it_was() -> None:
    us = peers()
    data = share((9, 5, 0.0), picker=2).pack()
    assert us.hear({0: data}, 1.0)
    assert not us.hear({0: data}, 2.0)
    assert [came_at for _, came_at in us.sums()] == [1.0]
    assert us.hear({}, 3.0)
    assert len(us) == 0


def test_a_free_seat_is_claimed_and_kept() -> None:
    us = peers()
    us.hear({0: share(picker=2).pack()}, 0.0)
    us.look_for_seat()
    assert (us.seat, us.is_seated) == (1, False)
    us.note_written(True)
    us.look_for_seat()
    assert (us.seat, us.is_seated) == (1, True)


def test_whoever_is_not_let_in_looks_elsewhere() -> None:
    us = peers()
    us.look_for_seat()
    us.note_written(False)
    us.hear({0: share(picker=2).pack()}, 0.0)
    us.look_for_seat()
    assert us.seat == 1


def test_whoever_finds_another_in_its_seat_moves() -> None:
    us = peers()
    us.look_for_seat()
    us.note_written(True)
    us.hear({0: share((9, 7, 0.0), picker=2).pack()}, 0.0)
    us.look_for_seat()
    assert (us.seat, us.is_seated) == (1, False)
    assert heard(us) == [7]


def test_where_all_seats_are_taken_we_only_listen() -> None:
    us = peers(seats=2)
    us.hear({0: share(picker=2).pack(), 1: share(picker=3).pack()}, 0.0)
    us.look_for_seat()
    assert us.seat is None
    us.hear({1: share(picker=3).pack()}, 1.0)
    us.look_for_seat()
    assert us.seat == 0


def test_what_is_no_share_is_counted_and_takes_no_seat_away_from_others() -> None:
    us = peers()
    us.hear({0: b"junk", 1: share((9, 5, 0.0), picker=2).pack()}, 0.0)
    us.hear({0: b"junk", 1: share((9, 5, 0.0), picker=2).pack()}, 1.0)
    assert us.foreign == 1
    assert heard(us) == [5]


def test_a_huge_value_is_not_read_again_for_a_while() -> None:
    us = peers()
    us.hear({2: b"\x01" * (SHARE_BYTES + 1)}, 0.0)
    assert us.readable(1.0) == [0, 1, 3]
    assert us.readable(60.0) == [0, 1, 2, 3]
