"""Circuit breakers: a worker that fails again and again is left out for a while, then tried with one request at a time.

A worker that answers 500 within milliseconds is always the least loaded one; without this it would draw all traffic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FAILURES = 5
PAUSE_S = 5.0
MOST_PAUSE_S = 60.0

_NOT_THE_WORKERS_FAULT = (408, 429, 501)
"""Of a slow client, of a full queue, of an API that this engine does not have."""


class Breakers:
    """One breaker for each slot. Times are in seconds on the clock of the bookings.

    After `failures` in a row a breaker opens for `pause_s`. Then one request may try; the breaker stays open for the
    others for as long again, so that requests that hang are few as well. An answer closes it, a failure opens it for
    twice as long, up to `most_pause_s`.
    """

    def __init__(
        self, capacity: int, failures: int = FAILURES, pause_s: float = PAUSE_S, most_pause_s: float = MOST_PAUSE_S
    ):
        self._failures = failures
        self._pause_s = pause_s
        self._most_pause_s = most_pause_s
        self._in_a_row = [0] * capacity
        self._pauses: dict[int, float] = {}
        """Of the slots whose breaker is open."""
        self._broken: dict[int, int] = {}
        """Of the slots whose last answers broke off, how many in a row."""
        self._until = np.zeros(capacity)

    def __repr__(self) -> str:
        return f"<Breakers, {len(self._pauses)} open>"

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._pauses)

    def grow(self, capacity: int) -> None:
        """Makes room for more slots."""
        more = capacity - len(self._until)
        self._in_a_row += [0] * more
        self._until = np.concatenate([self._until, np.zeros(more)])

    @property
    def is_suspicious(self) -> bool:
        """Whether it matters that an answer ended well."""
        return bool(self._broken)

    def reset(self, slot: int) -> None:
        """A new worker takes this slot."""
        self._broken.pop(slot, None)
        self._close(slot)

    def _close(self, slot: int) -> None:
        self._in_a_row[slot] = 0
        self._pauses.pop(slot, None)
        self._until[slot] = 0.0

    def answered(self, slot: int, status: int, now: float) -> None:
        """This worker has answered with this HTTP status. What a client did wrong is no failure of the worker."""
        if status in _NOT_THE_WORKERS_FAULT:
            return
        if status >= 500:
            self.failed(slot, now)
        else:
            self._close(slot)

    def ended(self, slot: int, is_broken: bool, now: float) -> None:
        """An answer of this worker is over, whole or broken off in the middle: after a head that was one of success."""
        if not is_broken:
            self._broken.pop(slot, None)
            return
        self._broken[slot] = self._broken.get(slot, 0) + 1
        if self._broken[slot] >= self._failures and slot not in self._pauses:
            self._pause(slot, self._pause_s, now)

    def failed(self, slot: int, now: float) -> None:
        """This worker could not be reached, or gave an answer that is one of a failure."""
        self._in_a_row[slot] += 1
        pause_s = self._pauses.get(slot)
        if pause_s is not None:
            self._pause(slot, min(2 * pause_s, self._most_pause_s), now)
        elif self._in_a_row[slot] >= self._failures:
            self._pause(slot, self._pause_s, now)

    def tried(self, slot: int, now: float) -> None:
        """A request has been placed here. Where the breaker is open it is the one that tries."""
        if slot in self._pauses:
            self._until[slot] = now + self._pauses[slot]

    def passing(self, now: float) -> npt.NDArray[np.bool_] | None:
        """The slots that may have a request now, shape (slots,); None where no breaker is open."""
        return self._until <= now if self._pauses else None

    def _pause(self, slot: int, pause_s: float, now: float) -> None:
        self._pauses[slot] = pause_s
        self._until[slot] = now + pause_s
