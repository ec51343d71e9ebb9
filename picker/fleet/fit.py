"""How many blocks of a worker without KV events to remember: what it says it has room for, less where that fails.

What was placed is believed to be cached until so many other blocks have been placed. That is wrong where the engine
keeps less, by other traffic, long answers or a cache that is off. Its counters tell: where fewer prompt tokens come
from its cache than were predicted, less is remembered, and more again once predictions hold.
"""

from __future__ import annotations

from dataclasses import dataclass

from picker.fleet.reuse import MAX_ERROR, Shares

_LEAST_TOKENS = 10_000
_LEAST_BLOCKS = 64
_PATIENCE_S = 30.0
_SHRINK, _GROW = 0.5, 1.25


@dataclass(slots=True)
class _Fit:
    blocks: float
    judged_at: float


class Fits:
    """By slot. `unknown_blocks` is for workers that do not say how much they have room for; `most_blocks` for all."""

    def __init__(self, unknown_blocks: int, most_blocks: int, block_tokens: int = 64):
        self._unknown_blocks = unknown_blocks
        self._most_blocks = most_blocks
        self._block_tokens = block_tokens
        self._slots: dict[int, _Fit] = {}

    def __repr__(self) -> str:
        return f"<Fits of {len(self._slots)} slots>"

    def room(self, capacity_tokens: int) -> int:
        """Blocks of a worker that says it has room for so many tokens; 0 if it does not say."""
        room = capacity_tokens // self._block_tokens if capacity_tokens > 0 else self._unknown_blocks
        return max(1, min(room, self._most_blocks))

    def judge(self, slot: int, capacity_tokens: int, shares: Shares | None, now: float) -> int:
        """How many blocks to remember of this slot, by what was predicted and what came true of late."""
        room = self.room(capacity_tokens)
        fit = self._slots.setdefault(slot, _Fit(room, now))
        if shares is not None and shares.tokens >= _LEAST_TOKENS and now - fit.judged_at >= _PATIENCE_S:
            if shares.error > MAX_ERROR:
                fit.blocks, fit.judged_at = max(_LEAST_BLOCKS, fit.blocks * _SHRINK), now
            elif shares.error < MAX_ERROR / 2:
                fit.blocks, fit.judged_at = fit.blocks * _GROW, now
        fit.blocks = min(fit.blocks, room)
        return int(fit.blocks)

    def forget(self, slot: int) -> None:
        """Another worker will take this slot."""
        self._slots.pop(slot, None)
