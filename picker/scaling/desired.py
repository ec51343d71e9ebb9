"""From demand to a number of workers.

now        rate of work / target
soon       rate of work forecast to when a worker that starts now would serve / target
backlog    work that waits already / drain_s
desired    ceil(max(now, soon) + backlog), at least 1 unless idle, within least and most, and no fewer than it was
               within down_after_s
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from picker.scaling.demand import Demand
from picker.scaling.settings import Scaling

_SLACK = 0.01
"""So little of a worker is no reason for one more."""


@dataclass(frozen=True, slots=True)
class Desired:
    """What the formula says, term by term, in workers; `workers` is what to ask for."""

    now: float
    soon: float
    backlog: float
    workers: int


class Sizing:
    """The formula and its damping, for one model."""

    def __init__(self, settings: Scaling):
        self._settings = settings
        self._lately: deque[tuple[float, int]] = deque()
        self._began_at = math.inf

    def desired(self, demand: Demand, backlog_s: float, waiting: int, now: float, pickers: int = 1) -> Desired:
        """`backlog_s`: worker-seconds of work that has come and is not done; `waiting`: requests without a worker.

        `pickers`: so many times the demand comes in all.
        """
        settings = self._settings
        self._began_at = min(self._began_at, now)
        demand.elapse(now)
        current = pickers * demand.workers / settings.target
        soon = pickers * demand.forecast(settings.startup_s) / settings.target
        backlog = backlog_s / settings.drain_s
        wanted = settings.least
        if waiting or not self._is_idle(demand, now):
            wanted = max(wanted, 1, math.ceil(max(current, soon) + backlog - _SLACK))
        return Desired(current, soon, backlog, self._damped(min(wanted, settings.most), now))

    def _is_idle(self, demand: Demand, now: float) -> bool:
        settings, last = self._settings, max(demand.last_at, self._began_at)
        return settings.idle_s > 0 and now - last >= settings.idle_s

    def _damped(self, wanted: int, now: float) -> int:
        """The most that was wanted lately. What only falls is kept: older and smaller ones can never count again."""
        while self._lately and self._lately[-1][1] <= wanted:
            self._lately.pop()
        self._lately.append((now, wanted))
        while now - self._lately[0][0] > self._settings.down_after_s:
            self._lately.popleft()
        return self._lately[0][1]
