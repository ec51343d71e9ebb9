"""How much work comes in, and how much will in a while.

Work is in worker-seconds: what a request takes of a worker's time. So the rate of work is the number of workers that
it would keep busy all the time (the offered load, in Erlang). Its level and trend are smoothed as Holt does it.
"""

from __future__ import annotations

import math

TICK_S = 5.0
"""Arrivals are summed over so long before they count as one observation of the rate."""
_TREND_WINDOWS = 4
"""The trend is smoothed over so many windows: what a rate does by chance must not be carried far ahead."""
_MOST_GROWTH = 2.0
"""A forecast is at most so many times what comes in now."""


class Demand:
    """Arrivals of one model. Times are on one clock, in seconds, and must not go back."""

    def __init__(self, window_s: float):
        self._window_s = window_s
        self._sums = [0.0, 0.0, 0.0]
        self._level = [0.0, 0.0, 0.0]
        self._trend = 0.0
        self._ticked_at: float | None = None
        self._ticks = 0
        self.last_at = -math.inf
        """When the last request came."""

    def __repr__(self) -> str:
        return f"<Demand {self._level[0]:.2f} workers, {60 * self._trend:+.2f} a minute>"

    def arrived(self, work_s: float, tokens: int, now: float) -> None:
        """A request that takes so much of a worker's time, with so many tokens, of prompt and expected answer."""
        self.elapse(now)
        for place, amount in enumerate((work_s, 1.0, float(tokens))):
            self._sums[place] += amount
        self.last_at = now

    def elapse(self, now: float) -> None:
        """Time has passed."""
        if self._ticked_at is None:
            self._ticked_at = now
        # After a long silence the first ticks bring everything to nothing; the others would change nothing.
        silent = int((now - self._ticked_at) / TICK_S) - 50 * self._window_s / TICK_S
        if silent > 0:
            self._ticked_at += TICK_S * int(silent)
        while now - self._ticked_at >= TICK_S:
            self._tick()
            self._ticked_at += TICK_S

    @property
    def workers(self) -> float:
        """The rate of work: worker-seconds a second."""
        return self._level[0]

    @property
    def requests_per_s(self) -> float:
        """Requests a second."""
        return self._level[1]

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, of prompts and expected answers."""
        return self._level[2]

    @property
    def service_s(self) -> float:
        """Mean work of a request, in worker-seconds; 0 where none has come."""
        return self._level[0] / self._level[1] if self._level[1] > 1e-9 else 0.0

    def forecast(self, ahead_s: float) -> float:
        """The rate of work in so many seconds, if it goes on as lately."""
        # The level is that of the middle of what it was averaged over.
        ahead_s += self._window_s
        return min(max(0.0, self._level[0] + self._trend * ahead_s), _MOST_GROWTH * self._level[0])

    def _tick(self) -> None:
        self._ticks += 1
        rates = [total / TICK_S for total in self._sums]
        self._sums = [0.0, 0.0, 0.0]
        before = self._level[0]
        # The first windows are a plain mean, so that one begins with what is there and not with nothing.
        share = max(1 - math.exp(-TICK_S / self._window_s), 1 / self._ticks)
        self._level = [old + share * (new - old) for old, new in zip(self._level, rates, strict=True)]
        if self._ticks * TICK_S > self._window_s:
            share = 1 - math.exp(-TICK_S / (_TREND_WINDOWS * self._window_s))
            self._trend += share * ((self._level[0] - before) / TICK_S - self._trend)
