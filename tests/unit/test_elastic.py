"""The simulated cluster that grows and shrinks."""

from __future__ import annotations

from picker.scaling.settings import Scaling
from picker.simulation.discrete import elastic
from picker.simulation.discrete.cluster import Cluster
from picker.simulation.discrete.elastic import Fleet, Horizontal, Predictive
from picker.simulation.discrete.gateway import Gateway
from picker.simulation.discrete.traces import BLOCK_TOKENS
from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.profiles import PROFILES

CLUSTER = Cluster(profile=PROFILES["32b"], workers=6)


class Planned:
    """Asks for what is written down."""

    def __init__(self, *plan: tuple[float, int]):
        self._plan = plan
        self.seen: list[Fleet] = []

    def placed(self, ask: Ask, prefill_s: float, gateway: Gateway, now: float) -> None:
        pass

    def desired(self, gateway: Gateway, fleet: Fleet, now: float) -> int:
        self.seen.append(fleet)
        return next(count for at, count in reversed(self._plan) if now >= at)


def requests(rate: float, seconds: float, start: float = 0.0) -> list[Ask]:
    return [
        Ask(start + number / rate, 8_000, 100, tuple(range(1000 * number, 1000 * number + 15)), measured=True)
        for number in range(int(rate * seconds))
    ]


def run(scaler: elastic.Scaler, asks: list[Ask], first: int = 2, startup_s: float = 60.0) -> elastic.Grown:
    return elastic.simulate(CLUSTER, Replay(asks, BLOCK_TOKENS), 1, scaler, startup_s, first)


def test_a_worker_costs_from_when_it_is_asked_for_and_serves_after_its_start() -> None:
    scaler = Planned((0.0, 2), (100.0, 4))
    grown = run(scaler, requests(1.0, 300.0))
    early = {request.worker for request in grown.outcome.requests if request.at < 160}
    late = {request.worker for request in grown.outcome.requests if request.at > 200}
    assert (early, late) == ({0, 1}, {0, 1, 2, 3})
    counts = [fleet.count for fleet in scaler.seen]
    assert (counts[0], counts[-1], grown.most) == (2, 4, 4)
    assert 0.24 < grown.gpu_hours < 0.32, "two for five minutes, two more for the last three"


def test_a_worker_that_goes_ends_its_requests_first_and_gets_no_more() -> None:
    grown = run(Planned((0.0, 4), (100.0, 1)), requests(3.0, 200.0), first=4)
    assert all(request.worker >= 0 for request in grown.outcome.requests), "nobody was cut off"
    late = {request.worker for request in grown.outcome.requests if request.at > 110}
    assert len(late) == 1
    assert grown.gpu_hours < 4 * 200 / 3600


def test_one_that_was_told_to_go_may_stay_after_all() -> None:
    asks = [Ask(0.0, 8_000, 20_000, (1,), measured=True), *requests(1.0, 200.0, start=1.0)]
    grown = run(Planned((0.0, 2), (20.0, 1), (40.0, 2)), asks)
    assert {request.worker for request in grown.outcome.requests if request.at > 50} == {0, 1}
    assert grown.most == 2


def test_horizontal_scaling_is_in_proportion_with_a_tolerance_and_patience() -> None:
    scaler = Horizontal("requests", 4.0, 1, 6, 60.0)
    gateway = elastic._Elastic(CLUSTER, Replay([], BLOCK_TOKENS), 1, scaler, 1.0, 1)._gateways[0]

    def asked(now: float, *loads: int) -> int:
        return scaler.desired(gateway, Fleet(len(loads), (), loads), now)

    assert asked(0.0, 4, 4) == 2
    assert asked(15.0, 8, 8) == 4
    assert asked(30.0, 0, 0) == 4
    assert asked(80.0, 0, 0) == 1


def test_pickers_signals_grow_a_fleet_that_is_too_small_and_shrink_it_when_it_is_quiet() -> None:
    settings = Scaling(startup_s=30.0, down_after_s=60.0, least=1, most=6)
    asks = [*requests(4.0, 300.0), *requests(0.2, 400.0, start=300.0)]
    grown = run(Predictive(settings, CLUSTER), asks, first=1, startup_s=30.0)
    during = {request.worker for request in grown.outcome.requests if 150 < request.at < 300}
    after = {request.worker for request in grown.outcome.requests if request.at > 550}
    assert len(during) >= 3
    assert len(after) == 1
