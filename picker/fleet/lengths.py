"""How long a model's answers are, learnt from what engines count: tokens generated over requests finished.

The counters see all traffic, also what does not come through this picker, and need no response body. A request that
is given up by its client generates tokens and never finishes, so many of those make answers look longer.
"""

from __future__ import annotations

from collections.abc import Collection

PRIOR_TOKENS = 256
"""Of an answer of a model that nothing is known of."""

MEMORY_REQUESTS = 1000
"""About so many finished requests count; older ones fade."""

MOST_TOKENS = 1 << 16
"""Of a mean. Counters come from outside, and no engine generates more for one request on average."""

_PRIOR_REQUESTS = 20


class OutputLengths:
    """Mean output tokens by the name that workers serve a model under. Bounded by `keep`."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def __repr__(self) -> str:
        return f"<OutputLengths of {len(self._sums)} models>"

    def note(self, model: str, generated_tokens: int, finished: int) -> None:
        """A worker has generated so many tokens and finished so many requests since it was last asked."""
        tokens, requests = self._sums.get(model, (0.0, 0.0))
        fading = (1 - 1 / MEMORY_REQUESTS) ** finished
        self._sums[model] = tokens * fading + generated_tokens, requests * fading + finished

    def mean(self, model: str) -> int:
        """Tokens, at least 1. Shrunk towards `PRIOR_TOKENS` while few requests have finished."""
        tokens, requests = self._sums.get(model, (0.0, 0.0))
        mean = (tokens + PRIOR_TOKENS * _PRIOR_REQUESTS) / (requests + _PRIOR_REQUESTS)
        return max(1, min(round(mean), MOST_TOKENS))

    def keep(self, models: Collection[str]) -> None:
        """Forgets all other models."""
        for model in self._sums.keys() - set(models):
            del self._sums[model]
