"""How much of what was placed is believed to be cached where no events tell."""

import pytest

from picker.fleet.fit import Fits
from picker.fleet.reuse import Shares
from picker.fleet.view import View
from tests.unit.fleets import Load, Worker

RIGHT, WRONG = Shares(0.6, 0.58, 100_000), Shares(0.6, 0.2, 100_000)


def fits() -> Fits:
    return Fits(unknown_blocks=1000, most_blocks=5000)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 1000), (64_000, 1000), (128_000, 2000), (10**9, 5000), (3, 1)])
def test_a_workers_room_is_what_it_says_within_bounds(tokens: int, blocks: int) -> None:
    assert fits().judge(0, tokens, None, 0.0) == blocks


def test_where_predictions_do_not_come_true_less_is_remembered_and_more_again_once_they_do() -> None:
    fit = fits()
    seen = [fit.judge(0, 128_000, None, 0.0)]
    seen += [fit.judge(0, 128_000, WRONG, 31.0 * n) for n in range(1, 4)]
    assert seen == [2000, 1000, 500, 250]
    for n in range(4, 30):
        last = fit.judge(0, 128_000, RIGHT, 31.0 * n)
        assert last >= seen[-1]
        seen.append(last)
    assert seen[-1] == 2000


def test_predictions_are_judged_from_time_to_time_and_never_by_a_few_tokens() -> None:
    fit = fits()
    fit.judge(0, 128_000, None, 0.0)
    assert fit.judge(0, 128_000, WRONG, 1.0) == 2000
    assert fit.judge(0, 128_000, Shares(0.9, 0.0, 500), 100.0) == 2000


def test_something_is_always_remembered() -> None:
    fit = fits()
    for n in range(100):
        fit.judge(0, 128_000, WRONG, 31.0 * n)
    assert fit.judge(0, 128_000, None, 0.0) == 64


def test_the_approximate_index_of_a_worker_is_as_large_as_its_cache() -> None:
    view = View()
    small = view.admit(Worker("small", epoch=1, publishes_kv=False, kv_capacity_tokens=640), now=0.0)
    large = view.admit(Worker("large", epoch=2, publishes_kv=False, kv_capacity_tokens=6400), now=0.0)
    for slot in (small, large):
        view.place(slot, range(1, 51), True, 1.0, 3200, 1.0)
    hits = view.hit_blocks(range(1, 51))
    assert (hits[small], hits[large]) == (10, 50)


def test_an_engine_that_reuses_less_than_was_predicted_is_believed_to_hold_less() -> None:
    view = View()
    slot = view.admit(Worker("w", epoch=1, publishes_kv=False, kv_capacity_tokens=6400), now=0.0)
    view.update_load(slot, Load(beat=1), now=0.0)
    for beat in range(2, 6):
        view.reuse.placed(slot, 40_000, 36_000, 31.0 * beat)
        view.update_load(slot, Load(beat=beat, looked_up_tokens=40_000 * beat, reused_tokens=100 * beat), 31.0 * beat)
    view.place(slot, range(1, 101), True, 1.0, 6400, 200.0)
    assert view.hit_blocks(range(1, 101))[slot] == 64
