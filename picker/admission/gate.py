"""The gate for cold sessions: while caches thrash, those whose cache is lost wait outside.

With more conversations than caches hold, each turn finds its own prefix evicted by somebody else's, is computed anew
and evicts another: all wait for work that nobody keeps. Serving fewer of them keeps those warm. What tells this from
traffic that shares nothing is that prompts come back whose beginning was computed here before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from picker.admission.settings import Gate

MOST_PROMPTS = 1 << 16
"""Remembered by their last block: 64 thousand conversations."""
_MEMORY = 64
"""Requests over which shares are averaged."""


class ColdGate:
    """Watches the prompts that are placed and those that must wait."""

    def __init__(self, settings: Gate):
        self._settings = settings
        self._ends: OrderedDict[int, None] = OrderedDict()
        self._asked = self._lost = 0.0

    def __repr__(self) -> str:
        return f"<ColdGate {len(self._ends)} prompts remembered, {self.lost:.0%} lost>"

    @property
    def lost(self) -> float:
        """Of the tokens asked for lately by requests that had to wait, those that were cached once and are no more."""
        return self._lost / self._asked if self._asked else 0.0

    def placed(self, chain: Sequence[int]) -> None:
        """This prompt goes to a worker, which will cache it."""
        if not chain or not self._settings.residence_s:
            return
        self._ends[chain[-1]] = None
        self._ends.move_to_end(chain[-1])
        if len(self._ends) > MOST_PROMPTS:
            self._ends.popitem(last=False)

    def refuses(self, chain: Sequence[int], hit_blocks: int, residence_s: float) -> bool:
        """Whether this prompt, of which so many blocks are cached, is to stay outside. `residence_s`: of the caches."""
        settings = self._settings
        if not chain or not settings.residence_s:
            return False
        fading = 1 - 1 / _MEMORY
        self._asked = self._asked * fading + len(chain)
        self._lost = self._lost * fading + max(0, self._known(chain) - hit_blocks)
        return (
            residence_s < settings.residence_s
            and self.lost >= settings.lost
            and hit_blocks < settings.cached * len(chain)
        )

    def _known(self, chain: Sequence[int]) -> int:
        """How many blocks of it were part of a prompt before."""
        return next((depth for depth in range(len(chain), 0, -1) if chain[depth - 1] in self._ends), 0)
