"""Whether predicted prefix hits come true: what was predicted of a worker's placements, and what its engine counts.

Compared are shares of prompt tokens and not sums: an engine counts the requests of all pickers, and of clients that
know no picker, while each picker knows its own. Traffic past the pickers that is unlike theirs is an error here too.

A share is predicted in blocks of 64 tokens and counted in the engine's blocks, so short prompts are predicted a little
low. What makes errors of more than that: a template or tokenizer that is not the engine's, lost KV events, an engine
whose cache is off, prompts that are placed by load.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

WINDOW_S = 120.0
MAX_ERROR = 0.2
SUSTAINED_S = 120.0
LEAST_TOKENS = 50_000


@dataclass(slots=True)
class Sums:
    """Tokens of the last `window_s` or so: older ones fade."""

    at: float
    placed: float = 0.0
    predicted: float = 0.0
    looked_up: float = 0.0
    reused: float = 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of prompt tokens, 0 to 1. `tokens` is how many they were taken of, on the side that knows of fewer."""

    predicted: float
    reused: float
    tokens: float

    @property
    def error(self) -> float:
        """Above 0 where more was predicted than came true."""
        return self.predicted - self.reused


class Reuse:
    """What was predicted and what came true, by slot. Times are in seconds, on one clock."""

    def __init__(self, window_s: float = WINDOW_S):
        self._window_s = window_s
        self._slots: dict[int, Sums] = {}

    def __repr__(self) -> str:
        return f"<Reuse of {len(self._slots)} slots>"

    def placed(self, slot: int, prompt_tokens: int, hit_tokens: int, now: float) -> None:
        """A request goes to this slot, which is predicted to hold so much of its prompt."""
        sums = self._faded(slot, now)
        sums.placed += prompt_tokens
        sums.predicted += min(hit_tokens, prompt_tokens)

    def counted(self, slot: int, looked_up_tokens: int, reused_tokens: int, now: float) -> None:
        """The engine has looked up so many tokens in its cache since it was last asked, and found so many."""
        sums = self._faded(slot, now)
        sums.looked_up += looked_up_tokens
        sums.reused += min(reused_tokens, looked_up_tokens)

    def inserted(self, now: float) -> dict[int, float]:
        """Prompt tokens placed on each slot in the last `window_s` or so that were not expected to be there."""
        return {slot: (sums := self._faded(slot, now)).placed - sums.predicted for slot in self._slots}

    def sums(self) -> dict[int, tuple[float, ...]]:
        """A copy of all there is, by slot, in the order of `Sums`."""
        return {slot: (s.at, s.placed, s.predicted, s.looked_up, s.reused) for slot, s in self._slots.items()}

    def forget(self, slot: int) -> None:
        """Another worker will take this slot."""
        self._slots.pop(slot, None)

    def shares(self, slots: Iterable[int], now: float) -> Shares | None:
        """Of these slots together; None where nothing was placed or nothing counted."""
        found = [self._faded(slot, now) for slot in slots if slot in self._slots]
        placed, looked_up = sum(each.placed for each in found), sum(each.looked_up for each in found)
        if placed < 1 or looked_up < 1:
            return None
        predicted, reused = sum(each.predicted for each in found), sum(each.reused for each in found)
        return Shares(predicted / placed, reused / looked_up, min(placed, looked_up))

    def _faded(self, slot: int, now: float) -> Sums:
        sums = self._slots.get(slot)
        if sums is None:
            sums = self._slots[slot] = Sums(now)
        elif now > sums.at:
            fading = math.exp((sums.at - now) / self._window_s)
            sums.at = now
            sums.placed *= fading
            sums.predicted *= fading
            sums.looked_up *= fading
            sums.reused *= fading
        return sums


@dataclass(frozen=True, slots=True)
class Change:
    """Predictions for a model have become wrong for good, or right again."""

    model: str
    is_wrong: bool
    shares: Shares


class PredictionWatch:
    """Which models' predictions are wrong, judged from time to time.

    They are once the error has been beyond `max_error` for `sustained_s`, and right again once it has been within it
    for as long. Where less than `least_tokens` were seen nothing is judged.
    """

    def __init__(
        self,
        max_error: float = MAX_ERROR,
        sustained_s: float = SUSTAINED_S,
        least_tokens: int = LEAST_TOKENS,
    ):
        self._max_error = max_error
        self._sustained_s = sustained_s
        self._least_tokens = least_tokens
        self._wrong: set[str] = set()
        self._differs_since: dict[str, float] = {}

    @property
    def wrong(self) -> frozenset[str]:
        """The models whose predictions are wrong at present."""
        return frozenset(self._wrong)

    def look(self, shares: Mapping[str, Shares], now: float) -> list[Change]:
        """What has changed. Models that are not in `shares` are forgotten."""
        self._wrong &= shares.keys()
        self._differs_since = {model: since for model, since in self._differs_since.items() if model in shares}
        return [change for model, each in shares.items() if (change := self._judge(model, each, now))]

    def _judge(self, model: str, shares: Shares, now: float) -> Change | None:
        is_off = abs(shares.error) > self._max_error
        if shares.tokens < self._least_tokens or is_off == (model in self._wrong):
            self._differs_since.pop(model, None)
            return None
        if now - self._differs_since.setdefault(model, now) < self._sustained_s:
            return None
        del self._differs_since[model]
        self._wrong ^= {model}
        return Change(model, is_off, shares)
