"""One run: a trace whose rate swings like a day's, a fleet that a scaler grows and shrinks, what came of it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from picker.scaling.settings import Scaling
from picker.simulation.discrete import elastic, slo, traces
from picker.simulation.discrete.cluster import Cluster
from picker.simulation.discrete.elastic import Horizontal, Predictive, Scaler
from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.profiles import PROFILES

SWING = 0.7
"""At the peak 1.7 times the mean rate comes, at the trough 0.3 times."""
DOWN_AFTER_S = 120.0
"""The same patience before workers go for all; of the busy measure, 300 s costs more and serves no better."""
WARM_S = 300.0
"""Of the simulated time that is not measured: the first fleet is not one that anybody asked for."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A trace with the fleet for it. `mean`: requests a second on average; `period_s`: how long a day takes here."""

    name: str
    asks: Sequence[Ask]
    profile: str
    mean: float
    period_s: float = 1800.0
    objective: str = "ttft=2s+2x,tpot=60ms"
    startup_s: float = 120.0
    least: int = 2
    most: int = 40


@dataclass(frozen=True, slots=True)
class Result:
    """One scaler on one scene. `took_s`: of this machine's time."""

    scene: str
    scaler: str
    attained: float
    gpu_hours: float
    most: int
    ttft_p99_s: float
    took_s: float


def scene(
    name: str, path: Path, profile: str, mean: float, requests: int | None = None, period_s: float = 1800.0
) -> Scene:
    """The first requests of a file. Raises BadTrace."""
    return Scene(name, traces.read(path)[:requests], profile, mean, period_s)


def swinging(asks: Sequence[Ask], mean: float, period_s: float) -> list[Ask]:
    """The same requests in the same order, at times between which the rate follows a sine."""
    share = (asks[-1].at - asks[0].at) or 1.0
    seconds = len(asks) / mean
    times = [_when((ask.at - asks[0].at) / share * seconds, period_s) for ask in asks]
    return [replace(ask, at=at, user=number) for number, (ask, at) in enumerate(zip(asks, times, strict=True))]


def _when(even: float, period_s: float) -> float:
    """The time by which as much has come, at the swinging rate, as by `even` at a steady one. By bisection."""
    low, high = 0.0, even + period_s
    for _ in range(60):
        middle = (low + high) / 2
        if _come(middle, period_s) < even:
            low = middle
        else:
            high = middle
    return high


def _come(at: float, period_s: float) -> float:
    # Begins in the trough: the rate is 1 - SWING * cos.
    turn = 2 * math.pi / period_s
    return at - SWING * math.sin(turn * at) / turn


def scalers(scene: Scene, targets: dict[str, Sequence[float]]) -> dict[str, Scaler]:
    """The contenders, each with each of its targets."""
    cluster = _cluster(scene)
    found: dict[str, Scaler] = {}
    for target in targets["busy"]:
        found[f"GPU busy {target:.0%}"] = Horizontal("busy", target, scene.least, scene.most, DOWN_AFTER_S)
    for target in targets["requests"]:
        found[f"requests per worker {target:g}"] = Horizontal("requests", target, scene.least, scene.most, DOWN_AFTER_S)
    for target in targets["predictive"]:
        found[f"Picker {target:.0%}"] = Predictive(_settings(scene, target), cluster)
    return found


def run(scene: Scene, name: str, scaler: Scaler, seed: int = 1) -> Result:
    """Simulates it to the end."""
    began = time.monotonic()
    asks = [replace(ask, measured=ask.at > WARM_S) for ask in swinging(scene.asks, scene.mean, scene.period_s)]
    grown = elastic.simulate(
        _cluster(scene), Replay(asks, traces.BLOCK_TOKENS), seed, scaler, scene.startup_s, first=scene.least + 2
    )
    figures = grown.outcome.figures(slo.parse(scene.objective))
    took_s = time.monotonic() - began
    return Result(scene.name, name, figures.attained, grown.gpu_hours, grown.most, figures.ttft_p99_s, took_s)


def _cluster(scene: Scene) -> Cluster:
    return Cluster(profile=PROFILES[scene.profile], workers=scene.most)


def _settings(scene: Scene, target: float) -> Scaling:
    return Scaling(
        target=target, startup_s=scene.startup_s, down_after_s=DOWN_AFTER_S, least=scene.least, most=scene.most
    )
