"""What the other pickers have placed and not yet seen end: their sums, as arrays over our slots.

They come several times a second, whole (`picker.fleet.sharing`). Between two times they stand still, but for the decay
of the utilisation window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
WINDOW_S = 15.0
"""Time constant of the window over which dispatched prefill work counts towards utilisation."""


@dataclass(frozen=True, slots=True)
class Sums:
    """One picker's sums for the workers on which it has something. Arrays of one shape, epochs of workers first.

    `prefill_s`: predicted seconds of prefill without a first token; `window_s`: of prefill dispatched, decayed over
    `WINDOW_S`. `token_age_s`: since the worker gave this picker a first token; `owing_age_s`: since it began to owe
    one. All of them as of the moment at which the sums were made.
    """

    epochs: npt.NDArray[np.uint64]
    requests: Ints
    context_tokens: Ints
    prefill_s: Floats
    window_s: Floats
    token_age_s: Floats
    owing_age_s: Floats


class Others:
    """Sums over the other pickers. Arrays have the shape (slots,)."""

    def __init__(self, capacity: int):
        self.pickers = 0
        self._at = 0.0
        self._allocate(capacity)

    def __repr__(self) -> str:
        return f"<Others {self.pickers} pickers, {int(self.requests.sum())} requests>"

    def clear(self) -> None:
        """Nothing is known of other pickers."""
        self.pickers = 0
        self._allocate(len(self.requests))

    def grow(self, capacity: int) -> None:
        """Makes room for more slots; they are filled when sums come."""
        old = vars(self).copy()
        self._allocate(capacity)
        for name, array in old.items():
            if isinstance(array, np.ndarray):
                getattr(self, name)[: len(array)] = array

    def reset(self, slot: int) -> None:
        """A new worker takes this slot."""
        for array in (self.requests, self.context_tokens, self.prefill_s, self._window_s, self.token_at):
            array[slot] = 0
        self.owing_since[slot] = np.inf

    def replace(
        self,
        shares: Iterable[tuple[Sums, float]],
        slots_of: Callable[[npt.NDArray[np.uint64]], Ints],
        now: float,
    ) -> None:
        """These are the sums of all other pickers, each with the time (as `now`) at which it came.

        `slots_of`: from epochs to slots, -1 for workers that we do not know.
        """
        self.clear()
        self._at = now
        for sums, came_at in shares:
            self.pickers += 1
            slots = slots_of(sums.epochs)
            known = slots >= 0
            self._add(sums, slots[known], known, came_at)

    def utilisation(self, now: float) -> Floats:
        """Share of a slot's time that the prefill work of the last seconds fills, 0 and up."""
        decay = float(np.exp((self._at - now) / WINDOW_S))
        return self._window_s * (decay / WINDOW_S)

    def _allocate(self, capacity: int) -> None:
        self.requests = np.zeros(capacity, np.int64)
        self.context_tokens = np.zeros(capacity, np.int64)
        self.prefill_s = np.zeros(capacity)
        self.token_at = np.zeros(capacity)
        self.owing_since = np.full(capacity, np.inf)
        self._window_s = np.zeros(capacity)

    def _add(self, sums: Sums, slots: Ints, known: npt.NDArray[np.bool_], came_at: float) -> None:
        # `ufunc.at`, since a record can name an epoch twice.
        np.add.at(self.requests, slots, sums.requests[known])
        np.add.at(self.context_tokens, slots, sums.context_tokens[known])
        np.add.at(self.prefill_s, slots, sums.prefill_s[known])
        np.add.at(self._window_s, slots, sums.window_s[known] * np.exp((came_at - self._at) / WINDOW_S))
        np.maximum.at(self.token_at, slots, came_at - sums.token_age_s[known])
        owing = np.where(sums.prefill_s > 0, came_at - sums.owing_age_s, np.inf)
        np.minimum.at(self.owing_since, slots, owing[known])
