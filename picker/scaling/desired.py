"""From demand to a number of workers.

    now        rate of work / target
    soon       rate of work forecast to when a worker that starts now would serve / target
    backlog    work that waits already / drain_s
    desired    ceil(max(now, soon) + backlog), within least and most, and no fewer than it was for down_after_s
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from picker.scaling.demand import Demand
from picker.scaling.settings import Scaling


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
        self._began_at: float | None = None

    def desired(self, demand: Demand, backlog_s: float, waiting: int, now: float) -> Desired:
        """`backlog_s`: worker-seconds of work that has come and is not done; `waiting`: requests without a worker."""
        settings = self._settings
        self._began_at = now if self._began_at is None else self._began_at
        demand.elapse(now)
        current = demand.workers / settings.target
        soon = demand.forecast(settings.startup_s) / settings.target
        backlog = backlog_s / settings.drain_s
        wanted = math.ceil(max(current, soon) + backlog - 1e-6)
        wanted = min(max(wanted, self._least(demand, waiting, now)), settings.most)
        return Desired(current, soon, backlog, self._damped(wanted, now))

    def _least(self, demand: Demand, waiting: int, now: float) -> int:
        settings = self._settings
        if waiting:
            return max(settings.least, 1)
        last = max(demand.last_at, self._began_at or now)
        is_idle = settings.idle_s > 0 and now - last >= settings.idle_s
        return settings.least if is_idle or settings.least else 1

    def _damped(self, wanted: int, now: float) -> int:
        """The most that was wanted lately. What only falls is kept: older and smaller ones can never count again."""
        while self._lately and self._lately[-1][1] <= wanted:
            self._lately.pop()
        self._lately.append((now, wanted))
        while now - self._lately[0][0] > self._settings.down_after_s:
            self._lately.popleft()
        return self._lately[0][1]
