"""What tenants were served lately, to tell who has had more than the others.

The order among tenants is fair, but requests are passed over whose worker has no room, and whoever asks for much always
has one whose worker has. So the last of a worker's room is kept for tenants who have had less, as telephone exchanges
keep the last lines free for some of the calls (trunk reservation).
"""

from __future__ import annotations

import math
from collections.abc import Callable

WINDOW_S = 30.0
_MORE = 1.3
"""Tenants that ask alike are this far apart by chance."""
_DUST = 1e-9
"""Less is what rounding has left of nothing."""
_MOST_WINDOWS = 20
"""Then everything is counted anew from there: numbers grow by e in each window."""
_LEAST_TOKENS = 1.0


class Usage:
    """Tokens that each tenant was served, over its weight; older ones count less, by e for each `WINDOW_S`.

    New ones are counted as more instead of old ones as less, so that only one number changes.
    """

    def __init__(self, weight_of: Callable[[str | int], float]):
        self._weight_of = weight_of
        self._used: dict[str | int, float] = {}
        self._sum = self._squares = 0.0
        self._since = 0.0

    def __repr__(self) -> str:
        return f"<Usage of {len(self._used)} tenants>"

    def served(self, tenant: str | int, tokens: float, now: float) -> None:
        """A request of so many tokens goes to a worker."""
        if now - self._since > _MOST_WINDOWS * WINDOW_S:
            self._count_anew(now)
        before = self._used.get(tenant, 0.0)
        after = before + tokens / self._weight_of(tenant) * math.exp((now - self._since) / WINDOW_S)
        self._used[tenant] = after
        self._sum += after - before
        self._squares += after * after - before * before

    def is_ahead(self, tenant: str | int) -> bool:
        """Whether it has had more than others: by some more than whoever got an average token of the others'."""
        used = self._used.get(tenant, 0.0)
        others = self._sum - used
        return others > _DUST * self._sum and used * others > _MORE * (self._squares - used * used)

    def _count_anew(self, now: float) -> None:
        fading = math.exp(-min(700.0, (now - self._since) / WINDOW_S))
        self._used = {key: used * fading for key, used in self._used.items() if used * fading > _LEAST_TOKENS}
        self._sum = sum(self._used.values())
        self._squares = sum(used * used for used in self._used.values())
        self._since = now
