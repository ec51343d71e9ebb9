"""How fast what waits is served, and so how long one more would wait, and when a refused client should come back."""

from __future__ import annotations

import math

WINDOW_S = 5.0
_LEAST_S = 0.5
_LEAST_COUNT = 0.1
LONGEST_RETRY_S = 30


class Pace:
    """Requests that leave the queue a second, while anybody waited, over about the last `WINDOW_S` of such time.

    Time in which nobody waits says nothing about how fast one could be served.
    """

    def __init__(self) -> None:
        self._served = self._gone = self._seconds = 0.0
        self._at: float | None = None

    def __repr__(self) -> str:
        return f"<Pace {self._served:.1f} requests in {self._seconds:.1f} s>"

    def elapse(self, is_waiting: bool, now: float) -> None:
        """Time has passed, to the end of which somebody waited or nobody did."""
        if is_waiting and self._at is not None and now > self._at:
            fading = math.exp((self._at - now) / WINDOW_S)
            self._served *= fading
            self._gone *= fading
            self._seconds = self._seconds * fading + (1 - fading) * WINDOW_S
        self._at = now if is_waiting else None

    def ended(self, is_served: bool) -> None:
        """One of those that waited waits no more."""
        self._gone += 1
        self._served += is_served

    def served_s(self, requests: int) -> float | None:
        """How long it takes to serve so many; None where that is not known, or nobody is served."""
        return self._seconds_for(requests, self._served)

    def gone_s(self, requests: int) -> float | None:
        """How long until so many no longer wait, whether they were served or refused; as `served_s`."""
        return self._seconds_for(requests, self._gone)

    def _seconds_for(self, requests: int, count: float) -> float | None:
        return requests * self._seconds / count if self._seconds >= _LEAST_S and count >= _LEAST_COUNT else None


def retry_after_s(wait_s: float | None, chance: float) -> int:
    """For the Retry-After header: whole seconds up to `LONGEST_RETRY_S`, 0 to leave it out.

    `chance` in [0, 1) spreads clients that were refused together: they come back between the wait and half as much
    later, and not later than the longest.
    """
    if wait_s is None or wait_s < 1:
        return 0
    if wait_s * 1.5 >= LONGEST_RETRY_S:
        return math.ceil(LONGEST_RETRY_S * (1 - chance / 3))
    return min(LONGEST_RETRY_S, math.ceil(wait_s * (1 + chance / 2)))
