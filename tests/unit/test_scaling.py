"""From demand to a number of workers: rates, forecasts, the formula, damping, by model."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.view import View
from picker.scaling.demand import TICK_S, Demand
from picker.scaling.desired import Desired, Sizing
from picker.scaling.settings import Scaling
from picker.scaling.signals import MOST_MODELS, Signals, Waiting
from picker.scaling.work import work_s
from picker.scheduling.model import WorkerModel
from tests.unit.fleets import fleet

MODEL = WorkerModel()


def feed(demand: Demand, rate: float, work: float, start: float, seconds: float, growth: float = 0.0) -> float:
    """Requests of this work, at a rate that grows by so much a second; returns the time after them."""
    now = start
    while now < start + seconds:
        demand.arrived(work, 100, now)
        now += 1 / (rate + growth * (now - start))
    demand.elapse(start + seconds)
    return start + seconds


def test_a_steady_rate_is_measured_in_requests_tokens_and_workers() -> None:
    demand = Demand(30.0)
    feed(demand, 4.0, 0.5, 0.0, 300.0)
    assert demand.requests_per_s == pytest.approx(4.0, rel=0.05)
    assert demand.tokens_per_s == pytest.approx(400.0, rel=0.05)
    assert demand.workers == pytest.approx(2.0, rel=0.05)
    assert demand.service_s == pytest.approx(0.5)
    assert demand.forecast(120.0) == pytest.approx(2.0, rel=0.1)


def test_a_rate_that_rises_is_forecast_to_rise_on_and_one_that_falls_to_fall() -> None:
    rising, falling = Demand(30.0), Demand(30.0)
    feed(rising, 4.0, 0.5, 0.0, 600.0, growth=0.01)
    assert rising.forecast(120.0) == pytest.approx(0.5 * (10.0 + 1.2), rel=0.1)
    feed(falling, 10.0, 0.5, 0.0, 600.0, growth=-0.01)
    assert falling.forecast(120.0) == pytest.approx(0.5 * (4.0 - 1.2), rel=0.2)


def test_a_forecast_is_never_negative_nor_out_of_all_proportion() -> None:
    demand = Demand(30.0)
    now = feed(demand, 10.0, 1.0, 0.0, 300.0)
    feed(demand, 0.1, 1.0, now, 60.0)
    assert demand.forecast(3600.0) == 0.0
    steep = Demand(30.0)
    feed(steep, 0.1, 1.0, 0.0, 120.0, growth=0.5)
    assert steep.forecast(3600.0) == 2 * steep.workers


def test_silence_brings_the_rate_to_nothing_however_long_it_lasts() -> None:
    demand = Demand(30.0)
    now = feed(demand, 10.0, 1.0, 0.0, 100.0)
    demand.elapse(now + 1e7)
    assert demand.workers < 1e-3
    assert demand.service_s == pytest.approx(1.0) or demand.service_s == 0.0


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 100)), max_size=60))
def test_rates_stay_finite_and_not_negative(arrivals: list[tuple[float, float]]) -> None:
    demand, now = Demand(30.0), 0.0
    for gap, work in arrivals:
        now += gap
        demand.arrived(work, 1, now)
        assert 0 <= demand.workers < 100 * len(arrivals) / TICK_S + 1
        assert math.isfinite(demand.forecast(120.0))


def test_work_is_prefill_and_a_share_of_full_steps() -> None:
    alone = work_s(MODEL, 1.0, 1000, 0, 0.05)
    longer = work_s(MODEL, 1.0, 1000, 500, 0.05)
    assert alone == 1.0
    each_s = MODEL.decode_s_per_request + MODEL.decode_s_per_context_token * 1250
    assert longer == pytest.approx(1.0 + 500 * 0.05 / ((0.05 - MODEL.step_s) / each_s))
    assert work_s(MODEL, 0.0, 1000, 10, 0.001) == pytest.approx(10 * (MODEL.step_s + each_s * 1005 / 1250), rel=0.1)


def sized(settings: Scaling, rate: float, work: float = 1.0, seconds: float = 300.0, **more: float) -> Desired:
    demand = Demand(settings.window_s)
    now = feed(demand, rate, work, 0.0, seconds)
    return Sizing(settings).desired(demand, more.get("backlog_s", 0.0), int(more.get("waiting", 0)), now)


def test_the_formula() -> None:
    settings = Scaling(target=0.5, drain_s=10.0, startup_s=0.0)
    found = sized(settings, 2.0, backlog_s=15.0)
    assert found.now == pytest.approx(4.0, rel=0.05)
    assert found.backlog == pytest.approx(1.5)
    assert found.workers == math.ceil(max(found.now, found.soon) + found.backlog)


def test_the_bounds_hold() -> None:
    assert sized(Scaling(most=3), 100.0).workers == 3
    assert sized(Scaling(least=2), 0.01).workers == 2


def test_to_zero_after_silence_and_from_zero_for_whoever_waits() -> None:
    settings = Scaling(least=0, idle_s=60.0, down_after_s=0.0)
    demand, sizing = Demand(settings.window_s), Sizing(settings)
    now = feed(demand, 1.0, 0.1, 0.0, 100.0)
    assert sizing.desired(demand, 0.0, 0, now).workers >= 1
    assert sizing.desired(demand, 0.0, 0, now + 59).workers >= 1
    assert sizing.desired(demand, 0.0, 0, now + 1000).workers == 0
    assert sizing.desired(demand, 0.0, 1, now + 1001).workers == 1


def test_without_requests_at_the_start_one_worker_stays_until_it_is_idle() -> None:
    settings = Scaling(least=0, idle_s=60.0, down_after_s=0.0)
    demand, sizing = Demand(settings.window_s), Sizing(settings)
    assert sizing.desired(demand, 0.0, 0, 0.0).workers == 1
    assert sizing.desired(demand, 0.0, 0, 61.0).workers == 0


def test_up_at_once_and_down_only_when_less_has_been_enough_for_a_while() -> None:
    settings = Scaling(down_after_s=100.0, drain_s=1.0)
    demand, sizing = Demand(30.0), Sizing(settings)
    wanted = [sizing.desired(demand, backlog, 0, at).workers for at, backlog in
              ((0, 2), (10, 9), (20, 3), (60, 5), (109, 1), (111, 1), (160, 1), (161, 1))]  # fmt: skip
    assert wanted == [2, 9, 9, 9, 9, 5, 5, 1]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.integers(0, 20))
def test_damping_is_the_most_of_the_window(backlogs: list[int], window: int) -> None:
    settings = Scaling(down_after_s=float(window), drain_s=1.0)
    demand, sizing = Demand(30.0), Sizing(settings)
    for at, backlog in enumerate(backlogs):
        expected = max(1, *backlogs[max(0, at - window) : at + 1]) if window else max(1, backlog)
        assert sizing.desired(demand, float(backlog), 0, float(at)).workers == expected


def test_models_are_sized_one_by_one_and_pickers_add_up() -> None:
    view = fleet(1)
    signals = Signals(Scaling(), MODEL)
    for number in range(600):
        signals.asked("llama", "", 1.0, 100, 0, number / 2)
    one = signals.read(view, {"gpt": Waiting(3, 300, 2.0)}, 300.0)
    assert set(one) == {"llama", "gpt"}
    assert (one["llama"].workers, one["gpt"].workers) == (1, 0)
    assert one["llama"].requests_per_s == pytest.approx(2.0, rel=0.1)
    assert one["gpt"].desired.workers >= 1
    assert one["gpt"].at_risk == 3
    two = signals.read(view, {}, 300.0, pickers=2)
    assert two["llama"].requests_per_s == pytest.approx(2 * one["llama"].requests_per_s)
    assert two["llama"].desired.workers > one["llama"].desired.workers


ADAPTER_SETTINGS = Scaling(startup_s=0.0, target=0.5, idle_s=60.0, down_after_s=60.0)


def asked_for_an_adapter(signals: Signals, adapter: str, rate: float, seconds: int) -> float:
    for number in range(int(rate * seconds)):
        signals.asked("llama", adapter, 0.5, 100, 0, number / rate)
    return float(seconds)


def test_a_model_is_to_be_loaded_on_as_many_workers_more_as_it_lacks() -> None:
    view = fleet(2)
    signals = Signals(ADAPTER_SETTINGS, MODEL)
    now = asked_for_an_adapter(signals, "", 4.0, 300)
    read = signals.read(view, {"gpt": Waiting(1, 100, 1.0)}, now)
    found = signals.residencies(read, view, now)
    assert (found["llama"].needed, found["llama"].resident, found["llama"].preload) == (4, 2, 2)
    assert (found["gpt"].resident, found["gpt"].preload) == (0, read["gpt"].desired.workers)
    view.ready[:] = False
    assert signals.residencies(read, view, now)["llama"].resident == 0


def test_an_adapter_is_to_be_loaded_where_its_own_requests_need_it_and_no_more() -> None:
    view = fleet(3, adapters=("sql", "poems"))
    signals = Signals(ADAPTER_SETTINGS, MODEL)
    now = asked_for_an_adapter(signals, "sql", 2.0, 300)
    view.use_adapter(0, "sql")
    read = signals.read(view, {}, now)
    found = signals.residencies(read, view, now)
    assert set(read) == {"llama"}, "adapters are not asked workers for by themselves"
    assert (found["sql"].needed, found["sql"].resident, found["sql"].preload) == (2, 1, 1)
    assert "poems" not in found
    view.use_adapter(1, "sql")
    assert signals.residencies(read, view, now)["sql"].preload == 0
    crowded = signals.residencies(read, view, now, pickers=10)["sql"]
    assert (crowded.needed, crowded.preload) == (3, 1), "no more than know it"


def test_an_adapter_that_nobody_asks_for_any_more_need_not_be_loaded() -> None:
    view = fleet(1, adapters=("sql",))
    signals = Signals(ADAPTER_SETTINGS, MODEL)
    now = asked_for_an_adapter(signals, "sql", 1.0, 100)
    for second in range(200):
        found = signals.residencies({}, view, now + second)
    assert found["sql"].needed == 0


def test_names_that_clients_make_up_are_bounded() -> None:
    signals = Signals(Scaling(), MODEL)
    for number in range(3 * MOST_MODELS):
        signals.asked(f"m{number}", "", 1.0, 1, 1, float(number))
    read = signals.read(View(capacity=4), {}, 1000.0)
    assert len(read) == MOST_MODELS
    assert f"m{3 * MOST_MODELS - 1}" in read


@pytest.mark.parametrize(("settings", "error"), [({"least": 9, "most": 3}, "least"), ({"least": 0}, "idle_s")])
def test_settings_that_make_no_sense_are_refused(settings: dict[str, int], error: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=error):
        msgspec.convert(settings, Scaling)
