"""How long what is cached stays: what engines compute, held against what they can cache."""

from __future__ import annotations

import math
from collections.abc import Mapping

WINDOW_S = 15.0


class Turnover:
    """Tokens computed by each slot over about the last `WINDOW_S`: prompt tokens that were not cached, and answers."""

    def __init__(self) -> None:
        self._sums: dict[int, tuple[float, float, float]] = {}

    def __repr__(self) -> str:
        return f"<Turnover of {len(self._sums)} slots>"

    def computed(self, slot: int, tokens: int, now: float) -> None:
        """So many since this slot was last asked."""
        since, at, total = self._sums.get(slot, (now, now, 0.0))
        self._sums[slot] = since, now, total * math.exp((at - now) / WINDOW_S) + tokens

    def forget(self, slot: int) -> None:
        """Another worker will take this slot."""
        self._sums.pop(slot, None)

    def residence_s(self, capacities: Mapping[int, int], now: float) -> float:
        """After how long the caches of these slots, of so many tokens, would be full of what is computed at this pace.

        Infinite where nothing is known.
        """
        rate = sum(self._rate(slot, now) for slot in capacities)
        return sum(capacities.values()) / rate if rate > 0 else math.inf

    def _rate(self, slot: int, now: float) -> float:
        since, at, total = self._sums.get(slot, (now, now, 0.0))
        # A window that has not lasted long yet holds less.
        span = WINDOW_S * (1 - math.exp((since - now) / WINDOW_S))
        return total * math.exp((at - now) / WINDOW_S) / span if span > 1.0 else 0.0
