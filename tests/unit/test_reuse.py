"""Predicted prefix hits against those that engines count."""

import pytest

from picker.fleet.reuse import Change, PredictionWatch, Reuse, Shares
from tests.unit.fleets import Load, Worker, fleet

RIGHT, WRONG = Shares(0.5, 0.45, 1e6), Shares(0.9, 0.1, 1e6)


def test_shares_are_of_what_was_placed_and_of_what_was_looked_up() -> None:
    reuse = Reuse()
    reuse.placed(0, prompt_tokens=1000, hit_tokens=800, now=0.0)
    reuse.placed(1, prompt_tokens=1000, hit_tokens=0, now=0.0)
    reuse.counted(0, looked_up_tokens=4000, reused_tokens=1000, now=0.0)
    shares = reuse.shares([0, 1, 7], now=0.0)
    assert shares == Shares(predicted=0.4, reused=0.25, tokens=2000)
    assert shares.error == pytest.approx(0.15)


def test_nothing_is_told_of_one_side_alone() -> None:
    reuse = Reuse()
    reuse.placed(0, 1000, 0, now=0.0)
    reuse.counted(1, 1000, 0, now=0.0)
    assert reuse.shares([0], now=0.0) is None
    assert reuse.shares([1], now=0.0) is None
    assert reuse.shares([0, 1], now=0.0) is not None


def test_what_was_long_ago_counts_for_less_and_time_never_runs_backwards() -> None:
    reuse = Reuse(window_s=10.0)
    reuse.placed(0, 1000, 1000, now=0.0)
    reuse.counted(0, 1000, 0, now=0.0)
    reuse.placed(0, 1000, 0, now=30.0)
    reuse.counted(0, 1000, 1000, now=20.0)
    shares = reuse.shares([0], now=30.0)
    assert shares is not None
    assert shares.predicted < 0.06 and shares.reused > 0.94


def test_no_more_comes_true_than_was_looked_up() -> None:
    reuse = Reuse()
    reuse.placed(0, 100, hit_tokens=128, now=0.0)
    reuse.counted(0, 100, reused_tokens=1000, now=0.0)
    assert reuse.shares([0], now=0.0) == Shares(1.0, 1.0, 100)


class TestWatch:
    def test_an_error_that_lasts_is_told_once_and_its_end_too(self) -> None:
        watch = PredictionWatch(sustained_s=60.0)
        told = [(now, watch.look({"m": WRONG if now < 200 else RIGHT}, float(now))) for now in range(0, 400, 10)]
        changes = [(now, change) for now, changes in told for change in changes]
        assert changes == [(60, Change("m", True, WRONG)), (260, Change("m", False, RIGHT))]

    def test_an_error_that_passes_is_not_told(self) -> None:
        watch = PredictionWatch(sustained_s=60.0)
        for now in range(0, 1000, 10):
            assert not watch.look({"m": RIGHT if now % 50 == 0 else WRONG}, float(now))
        assert not watch.wrong

    def test_too_few_tokens_prove_nothing(self) -> None:
        watch = PredictionWatch(sustained_s=60.0, least_tokens=1000)
        for now in range(0, 1000, 10):
            assert not watch.look({"m": Shares(1.0, 0.0, 999)}, float(now))

    def test_too_little_predicted_is_an_error_as_well(self) -> None:
        watch = PredictionWatch(sustained_s=0.0)
        assert watch.look({"m": Shares(0.0, 0.9, 1e6)}, 0.0) == [Change("m", True, Shares(0.0, 0.9, 1e6))]
        assert watch.wrong == {"m"}

    def test_a_model_that_is_gone_is_forgotten(self) -> None:
        watch = PredictionWatch(sustained_s=0.0)
        watch.look({"m": WRONG}, 0.0)
        assert not watch.look({}, 1.0)
        assert not watch.wrong


class TestView:
    def test_it_learns_from_what_counters_have_grown_by(self) -> None:
        view = fleet(2)
        for beat, done in enumerate((100_000, 200_000)):
            load = Load(
                beat, looked_up_tokens=done, reused_tokens=done // 2, generated_tokens=done, finished=done // 1000
            )
            for slot in (0, 1):
                view.update_load(list(view.slots())[slot], load, float(beat))
        for slot in view.slots():
            view.reuse.placed(slot, 1000, 250, 1.0)
        shares = view.reused(1.0)["llama"]
        assert (shares.predicted, shares.reused) == (0.25, 0.5)
        assert 900 < view.lengths.mean("llama") < 1000

    def test_counters_that_begin_anew_teach_nothing(self) -> None:
        view = fleet(1)
        [slot] = view.slots()
        for beat, done in enumerate((5000, 10, 20)):
            view.update_load(slot, Load(beat, looked_up_tokens=done, reused_tokens=done), 0.0)
        view.reuse.placed(slot, 10, 0, 0.0)
        assert view.reused(0.0)["llama"].tokens == 10

    def test_a_new_epoch_starts_from_nothing(self) -> None:
        view = fleet(1)
        [old] = view.slots()
        view.reuse.placed(old, 1000, 1000, 0.0)
        for beat, done in enumerate((0, 1000)):
            view.update_load(old, Load(beat, looked_up_tokens=done), 0.0)
        assert view.reused(0.0)
        slot = view.admit(Worker("w0", epoch=2), now=1.0)
        view.update_load(slot, Load(0, looked_up_tokens=9000), 1.0)
        assert not view.reused(1.0)

    def test_a_worker_that_has_not_said_what_it_serves_teaches_nothing_of_any_model(self) -> None:
        view = fleet(1, models=())
        [slot] = view.slots()
        for beat, done in enumerate((0, 1000)):
            view.update_load(slot, Load(beat, finished=done, generated_tokens=done), 0.0)
        assert not view.reused(0.0)
