"""The books: what is placed is released once, whatever happens in between."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.inflight import CALIBRATION_PRIOR_S, WINDOW_S, Booking, InFlight

SLOTS = 3
slots = st.integers(0, SLOTS - 1)
steps = st.one_of(
    st.tuples(
        st.just("book"), slots, st.floats(0, 1e5), st.integers(0, 10**7), st.one_of(st.none(), st.integers(0, 2))
    ),
    st.tuples(st.sampled_from(["first_token", "release"]), st.integers(0, 30)),
    st.tuples(st.just("announced"), slots, st.integers(0, 2)),
    st.tuples(st.just("book_unseen"), slots, st.floats(0, 3), st.integers(0, 10**7)),
    st.tuples(st.just("elapse")),
    st.tuples(st.just("counted"), slots, st.integers(0, 30)),
    st.tuples(st.just("found"), slots, st.integers(0, 2)),
    st.tuples(st.just("grow")),
)


def check(books: InFlight, bookings: list[Booking]) -> None:
    """The sums are those of the open bookings."""
    for slot in range(SLOTS):
        open_ = [booking for booking in bookings if booking.slot == slot and booking.is_open]
        owed = [booking.work_s for booking in open_ if not booking.has_first_token]
        assert books.requests[slot] == len(open_)
        assert books.context_tokens[slot] == sum(booking.prompt_tokens for booking in open_)
        assert books.prefill_s[slot] == pytest.approx(sum(owed), rel=1e-9, abs=1e-4)
        assert books.prefill_s[slot] >= 0


@given(st.lists(steps, max_size=60))
def test_books_are_the_sum_of_open_bookings_and_return_to_zero(script: list[tuple[object, ...]]) -> None:
    books, bookings, now = InFlight(SLOTS), list[Booking](), 1000.0
    for step in script:
        now += 0.25
        match step:
            case ("book", int(slot), float(work_s), int(tokens), last):
                bookings.append(books.book(slot, work_s, tokens, last, now))  # type: ignore[arg-type]
            case ("book_unseen", int(slot), float(work_s), int(tokens)):
                bookings.append(books.book_unseen(slot, work_s, tokens, now))
            case ("elapse",):
                books.elapse(now)
            case ("first_token", int(number)) if bookings:
                books.first_token(bookings[number % len(bookings)], now)
            case ("release", int(number)) if bookings:
                books.release(bookings[number % len(bookings)], now)
            case ("announced", int(slot), int(block)):
                books.announced(slot, block, now)
            case ("counted", int(slot), int(first_tokens)):
                books.counted(slot, first_tokens, now)
            case ("found", int(slot), int(block)):
                books.found(slot, block, now)
            case ("grow",):
                books.grow(len(books.requests) + 1)
        check(books, bookings)
        awaiting = [b for b in bookings if b.is_open and not b.has_first_token and b.last_block is not None]
        assert books.awaited == bool(awaiting)
        assert np.isfinite(books.speed()).all() and (books.speed() > 0).all()
        assert (books.utilisation(now) >= 0).all()
    for booking in bookings * 2:
        books.release(booking, now)
    assert not books.requests.any() and not books.context_tokens.any() and not books.prefill_s.any()
    assert not books.awaited


def test_an_announcement_is_the_first_token_of_all_prompts_that_end_in_the_block() -> None:
    books = InFlight(2)
    same = [books.book(0, 1.0, 100, 7, 0.0) for _ in range(2)]
    others = [books.book(1, 1.0, 100, 7, 0.0), books.book(0, 1.0, 100, 8, 0.0), books.book(0, 1.0, 100, None, 0.0)]
    books.announced(0, 7, 1.0)
    assert all(booking.has_first_token for booking in same)
    assert not any(booking.has_first_token for booking in others)
    assert books.requests.tolist() == [4, 1]


def test_a_first_token_after_the_end_changes_nothing() -> None:
    books = InFlight(1)
    booking = books.book(0, 1.0, 100, None, 0.0)
    books.release(booking, 1.0)
    before = books.speed()
    books.first_token(booking, 50.0)
    assert (books.speed() == before).all()
    assert books.progress_at[0] == 1.0


def test_the_progress_clock_starts_with_the_first_debt_and_moves_with_each_first_token() -> None:
    books = InFlight(1)
    first = books.book(0, 1.0, 100, None, 10.0)
    second = books.book(0, 1.0, 100, None, 12.0)
    assert books.progress_at[0] == 10.0
    books.first_token(first, 13.0)
    assert books.progress_at[0] == 13.0
    books.first_token(second, 14.0)
    books.book(0, 1.0, 100, None, 99.0)
    assert books.progress_at[0] == 99.0


def test_a_worker_as_fast_as_predicted_has_speed_one() -> None:
    books = InFlight(2)
    for step in range(50):
        books.first_token(books.book(0, 0.5, 100, None, float(step)), step + 0.5)
    assert books.speed() == pytest.approx(1.0)


def test_time_in_the_queue_behind_others_is_not_held_against_a_worker() -> None:
    books = InFlight(2)
    queue = [books.book(0, 1.0, 100, None, 0.0) for _ in range(20)]
    for step, booking in enumerate(queue, 1):
        books.first_token(booking, float(step))
    assert books.speed()[0] == pytest.approx(1.0)


def test_a_slow_worker_becomes_known_as_slow_and_an_untried_one_counts_as_average() -> None:
    books = InFlight(3)
    for step in range(0, 200, 4):
        books.first_token(books.book(0, 1.0, 100, None, float(step)), step + 3.0)
        books.first_token(books.book(1, 1.0, 100, None, float(step)), step + 1.0)
    slow, normal, untried = books.speed()
    assert slow == pytest.approx(3.0, rel=0.1)
    assert normal == pytest.approx(1.0, rel=0.1)
    assert normal < untried < slow


def test_one_observation_moves_a_speed_only_a_little() -> None:
    books = InFlight(2)
    books.first_token(books.book(0, 0.01, 100, None, 0.0), 0.1)
    assert 1 < books.speed()[0] < 1.1
    assert CALIBRATION_PRIOR_S > 10 * 0.1


def test_first_tokens_that_nothing_shows_come_one_after_the_other_as_predicted() -> None:
    books = InFlight(2)
    first, second = (books.book_unseen(0, 1.0, 100, now=10.0) for _ in range(2))
    books.elapse(10.9)
    assert not first.has_first_token
    books.elapse(11.5)
    assert first.has_first_token and not second.has_first_token
    assert (books.prefill_s[0], books.progress_at[0]) == (1.0, 11.0)
    books.elapse(12.0)
    assert second.has_first_token and books.prefill_s[0] == 0


def test_a_prompt_whose_prefill_is_cut_short_does_not_hold_up_those_behind_it() -> None:
    books = InFlight(1)
    huge = books.book_unseen(0, 1e5, 10**7, now=0.0)
    behind = books.book_unseen(0, 1.0, 100, now=0.0)
    books.release(huge, now=1.0)
    books.elapse(2.0)
    assert behind.has_first_token


def test_what_is_only_predicted_teaches_nothing_about_speed() -> None:
    books = InFlight(2)
    refused = books.book_unseen(0, 1e5, 10**7, now=0.0)
    books.release(refused, now=0.02)
    books.book_unseen(1, 0.01, 100, now=0.0)
    books.elapse(30.0)
    assert books.speed().tolist() == [1.0, 1.0]


def test_utilisation_is_the_share_of_recent_time_that_work_fills_and_fades() -> None:
    books = InFlight(2)
    for step in range(200):
        books.book(0, 0.5, 100, None, float(step))
    assert books.utilisation(199.0)[0] == pytest.approx(0.5, abs=0.05)
    assert books.utilisation(199.0 + WINDOW_S)[0] == pytest.approx(0.5 / np.e, abs=0.05)
    assert books.utilisation(199.0)[1] == 0


def test_growth_keeps_what_is_booked() -> None:
    books = InFlight(1)
    booking = books.book(0, 1.0, 100, 7, 0.0)
    books.grow(4)
    assert books.requests.tolist() == [1, 0, 0, 0]
    books.announced(0, 7, 1.0)
    books.release(booking, 2.0)
    assert books.prefill_s.tolist() == [0, 0, 0, 0]
    assert {len(books.speed()), len(books.utilisation(2.0))} == {4}


def test_a_new_worker_inherits_nothing_of_its_slot() -> None:
    books = InFlight(2)
    for step in range(10):
        booking = books.book(0, 1.0, 100, None, float(step))
        books.first_token(booking, step + 0.9)
        books.release(booking, step + 0.9)
    books.reset(0)
    assert books.speed()[0] == books.speed()[1]
    assert books.utilisation(10.0)[0] == 0


def test_work_that_was_refused_or_given_up_does_not_keep_a_worker_busy() -> None:
    books = InFlight(2)
    books.release(books.book(0, 100.0, 1_000_000, None, now=0.0), now=1.0)
    assert books.utilisation(1.0)[0] < 1e-9
    answered = books.book(1, 10.0, 1000, None, now=0.0)
    answered.is_answered = True
    books.release(answered, now=1.0)
    assert books.utilisation(1.0)[1] > 0.5


def test_counted_first_tokens_are_those_of_the_oldest_requests() -> None:
    books = InFlight(1)
    books.counted(0, 100, 0.0)
    first, second = (books.book_unseen(0, 5.0, 100, now) for now in (1.0, 2.0))
    books.counted(0, 101, 3.0)
    assert (first.has_first_token, second.has_first_token) == (True, False)
    assert books.prefill_s[0] == 5.0


def test_a_first_token_is_not_counted_twice() -> None:
    books = InFlight(1)
    books.counted(0, 100, 0.0)
    first, second = (books.book_unseen(0, 5.0, 100, 1.0) for _ in range(2))
    books.release(first, 2.0)
    books.counted(0, 101, 3.0)
    assert not second.has_first_token
    books.counted(0, 102, 4.0)
    assert second.has_first_token


def test_of_first_tokens_our_share_is_ours() -> None:
    books = InFlight(1)
    books.counted(0, 100, 0.0)
    ours = [books.book_unseen(0, 5.0, 100, 1.0) for _ in range(4)]
    books.reported(0, 8)
    books.reported(0, 8)
    books.counted(0, 104, 2.0)
    assert [booking.has_first_token for booking in ours] == [True, True, False, False]


def test_a_count_that_begins_anew_says_nothing() -> None:
    books = InFlight(1)
    books.counted(0, 100, 0.0)
    booking = books.book_unseen(0, 5.0, 100, 1.0)
    books.counted(0, 3, 2.0)
    assert not booking.has_first_token
    books.counted(0, 4, 3.0)
    assert booking.has_first_token


def test_a_worker_that_counts_is_given_more_time_before_a_first_token_is_taken_to_have_come() -> None:
    books = InFlight(2)
    books.counted(1, 7, 0.0)
    silent, counting = (books.book_unseen(slot, 2.0, 100, 0.0) for slot in range(2))
    books.elapse(3.0)
    assert (silent.has_first_token, counting.has_first_token) == (True, False)
    books.elapse(10.0)
    assert counting.has_first_token


def test_a_block_found_in_a_snapshot_shows_a_first_token_and_teaches_nothing_of_the_speed() -> None:
    books = InFlight(1)
    booking = books.book(0, 2.0, 100, 7, 0.0)
    books.found(0, 7, 60.0)
    assert booking.has_first_token and not books.awaited
    assert books.speed()[0] == 1.0
