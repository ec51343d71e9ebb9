"""Requests that workers report and no picker has booked: those of a picker's former life, and of whoever calls direct.

A picker that starts among busy workers must not take them for idle. Reports lag behind the books, so that a request
that has just ended looks like a stranger in the next one; only what two reports in a row show is believed, and of a
worker's first report all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Strangers:
    """One number for each slot: `requests`, shape (slots,)."""

    def __init__(self, capacity: int):
        self.requests: npt.NDArray[np.int64] = np.zeros(capacity, np.int64)
        self.total = 0
        self._before: list[int | None] = [None] * capacity

    def __repr__(self) -> str:
        return f"<Strangers {self.total} requests>"

    def grow(self, capacity: int) -> None:
        """Makes room for more slots."""
        more = capacity - len(self.requests)
        self.requests = np.concatenate([self.requests, np.zeros(more, np.int64)])
        self._before += [None] * more

    def reset(self, slot: int) -> None:
        """A new worker takes this slot."""
        self._before[slot] = None
        self._set(slot, 0)

    def reported(self, slot: int, reported: int, booked: int) -> None:
        """A worker reports so many requests, of which pickers have booked so many at the same time."""
        unbooked = max(0, reported - booked)
        before = self._before[slot]
        self._before[slot] = unbooked
        self._set(slot, unbooked if before is None else min(unbooked, before))

    def _set(self, slot: int, requests: int) -> None:
        self.total += requests - self.requests.item(slot)
        self.requests[slot] = requests
