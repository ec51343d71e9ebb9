"""How much a policy holds: the most users, the highest speed or rate with enough requests within the objective.

Amounts are taken from a grid with steps of a few per cent, so that runs can be used again for other levels, and
searched by doubling and bisection. Attainment is taken to fall with load; with few users, all cold, it may not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

from picker.simulation.discrete.cluster import Cluster, Patience, simulate
from picker.simulation.discrete.outcome import Figures, Outcome
from picker.simulation.discrete.slo import Slo
from picker.simulation.discrete.workloads import Workload

STEP = 0.03
_WIDEST = 1.6
"""An amount so many times the last one is tried next at most: runs far beyond what holds take long."""
_MOST_STRIDES = 40
_T_975 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t for a two-sided interval of 95 %, by degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Held:
    """The most that held with one seed: 0 where nothing did. `figures` are those of the run at that amount."""

    amount: float
    figures: Figures | None


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean and half the width of its confidence interval of 95 %; None for a single value."""

    value: float
    half_width: float | None

    def __str__(self) -> str:
        return f"{self.value:.3g}" + (f" ± {self.half_width:.2g}" if self.half_width is not None else "")


@dataclass(slots=True)
class Runs:
    """One policy on one workload with one seed. They are kept, by amount: levels and objectives share them.

    `least_level` is the lowest level that will be asked for, and `slo` an objective that is met wherever one of those
    is that will be: runs that cannot reach it are given up.
    """

    cluster: Cluster
    workload: Workload
    slo: Slo
    seed: int
    least_level: float
    outcomes: dict[float, Outcome] = field(default_factory=dict, repr=False)

    def at(self, amount: float) -> Outcome:
        """What becomes of this amount."""
        if amount not in self.outcomes:
            source = self.workload.build(amount, self.seed)
            patience = Patience(self.slo, 1 - self.least_level)
            self.outcomes[amount] = simulate(self.cluster, source, self.seed, patience)
        return self.outcomes[amount]


@dataclass(slots=True)
class Search:
    """For the most that holds by one objective. Points are kept: levels share them."""

    runs: Runs
    slo: Slo
    step: float = STEP
    points: dict[int, tuple[float, Figures | None]] = field(default_factory=dict)

    def held(self, level: float, hint: float) -> Held:
        """The most with at least this share of requests in the objective, searched from `hint` on."""
        low, high = self._bracket(self._index(hint), level)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._holds(middle, level) else (low, middle)
        return Held(self._amount(low), self.points[low][1]) if self._holds(low, level) else Held(0.0, None)

    def curve(self) -> list[tuple[float, float]]:
        """Amounts that were tried, and the attainment there. A run that was given up counts as what it had missed."""
        return sorted((self._amount(index), attained) for index, (attained, _) in self.points.items())

    def _bracket(self, start: int, level: float) -> tuple[int, int]:
        """Two indices: the first one holds, unless nothing does, and the second one does not."""
        stride, widest = 1, max(1, int(math.log(_WIDEST) / math.log1p(self.step)))
        if self._holds(start, level):
            for _ in range(_MOST_STRIDES):
                if not self._holds(start + stride, level):
                    return start, start + stride
                start, stride = start + stride, min(2 * stride, widest)
            return start, start + 1
        for _ in range(_MOST_STRIDES):
            lower = max(self._index(self._least), start - stride)
            if lower == start or self._holds(lower, level):
                return lower, start
            start, stride = lower, min(2 * stride, widest)
        return start, start + 1

    def _holds(self, index: int, level: float) -> bool:
        if index not in self.points:
            self.points[index] = self._run(self._amount(index))
        return self.points[index][0] >= level

    def _run(self, amount: float) -> tuple[float, Figures | None]:
        outcome = self.runs.at(amount)
        attained = outcome.attained(self.slo)
        if not outcome.is_whole:
            attained = min(attained, self.runs.least_level - 1e-9)
        return attained, outcome.figures(self.slo) if outcome.is_whole else None

    @property
    def _least(self) -> float:
        return 1.0 if self.runs.workload.is_whole else 0.05

    def _index(self, amount: float) -> int:
        return round(math.log(max(amount, self._least)) / math.log1p(self.step))

    def _amount(self, index: int) -> float:
        amount = (1 + self.step) ** index
        return float(max(1, round(amount))) if self.runs.workload.is_whole else round(amount, 4)


def mean(values: Sequence[float]) -> Mean:
    """With the confidence interval of independent values."""
    if len(values) < 2:
        return Mean(values[0] if values else math.nan, None)
    return Mean(fmean(values), _T_975.get(len(values) - 1, 1.96) * stdev(values) / math.sqrt(len(values)))


def ratio(values: Sequence[float], base: Sequence[float]) -> Mean | None:
    """Of pairs with the same seed; None where one of the base is 0."""
    if not all(base):
        return None
    return mean([value / one for value, one in zip(values, base, strict=True)])
