"""The books: what this picker has placed and not yet seen end.

Everything is kept as arrays over slots, because the cost of a pick is computed for all workers at once. The
quantities are those of the cost formula (`picker.scheduling.policies.expected_delay`). Beside our own books stand the
sums of the other pickers (`picker.fleet.others`); `outstanding` is both together.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from picker.fleet.others import WINDOW_S, Ints, Others, Sums
from picker.fleet.strangers import Strangers

Floats = npt.NDArray[np.float64]
CALIBRATION_PRIOR_S = 2.0
"""Seconds of predicted work for which the pool's speed counts when a worker's own speed is estimated."""
_CALIBRATION_DECAY = 0.97
_COUNTED_PATIENCE = 3.0
"""A worker that counts its first tokens gets so many times the predicted time before one is taken to have come."""
_LEAST_WINDOW_S = 0.01
"""Less prefill in the window is not worth telling other pickers."""


@dataclass(slots=True, eq=False)
class Booking:
    """One placed request. `work_s` is its predicted prefill time on a worker of speed 1, in seconds.

    `is_heard`: the head of a response has come; `is_answered`: and it was a success.
    """

    slot: int
    work_s: float
    prompt_tokens: int
    placed_at: float
    last_block: int | None
    has_first_token: bool = False
    is_heard: bool = False
    is_answered: bool = False
    is_open: bool = True


class Outstanding(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What all pickers have placed on each slot and not yet seen end. Arrays have the shape (slots,).

    `requests` includes those of strangers. `progress_at`: when a slot last gave a first token, or the earliest time
    since which it owes one, whichever is later. `utilisation`: share of its time that the prefill work of the last
    seconds fills, 0 and up.
    """

    requests: Ints
    context_tokens: Ints
    prefill_s: Floats
    progress_at: Floats
    utilisation: Floats


class InFlight:
    """Sums of the open bookings for each slot. Arrays have the shape (slots,)."""

    def __init__(self, capacity: int):
        self.others = Others(capacity)
        self.strangers = Strangers(capacity)
        self.version = 0
        """Grows with each change of the sums."""
        self.requests = np.zeros(capacity, np.int64)
        self.context_tokens = np.zeros(capacity, np.int64)
        self.prefill_s = np.zeros(capacity)
        """Predicted prefill seconds of bookings that have no first token yet."""
        self._token_at = np.zeros(capacity)
        self._owing_since = np.zeros(capacity)
        self._window_s = np.zeros(capacity)
        self._window_at = np.zeros(capacity)
        self._observed_s = np.zeros(capacity)
        self._predicted_s = np.zeros(capacity)
        self._speed = np.ones(capacity)
        self._waiting: dict[tuple[int, int], list[Booking]] = {}
        self._unseen: dict[int, dict[Booking, None]] = {}
        self._first_tokens = np.full(capacity, -1, np.int64)
        self._uncounted = np.zeros(capacity)

    def __repr__(self) -> str:
        return f"<InFlight {int(self.requests.sum())} requests, {self.prefill_s.sum():.1f} s of prefill>"

    def grow(self, capacity: int) -> None:
        """Makes room for more slots."""
        old = len(self.requests)
        for name, array in vars(self).items():
            if isinstance(array, np.ndarray):
                setattr(self, name, np.concatenate([array, np.zeros(capacity - len(array), array.dtype)]))
        self._first_tokens[old:] = -1
        self.others.grow(capacity)
        self.strangers.grow(capacity)
        self._learn()

    def reset(self, slot: int) -> None:
        """A new worker takes this slot."""
        for array in vars(self).values():
            if isinstance(array, np.ndarray):
                array[slot] = 0
        self._first_tokens[slot] = -1
        self.others.reset(slot)
        self.strangers.reset(slot)
        self._learn()

    def book(self, slot: int, work_s: float, prompt_tokens: int, last_block: int | None, now: float) -> Booking:
        """A request goes to this slot. `last_block` is its deepest index block, by which its first token shows."""
        booking = Booking(slot, work_s, prompt_tokens, now, last_block)
        if self.prefill_s[slot] <= 0:
            self._owing_since[slot] = now
        self.version += 1
        self.requests[slot] += 1
        self.context_tokens[slot] += prompt_tokens
        self.prefill_s[slot] += work_s
        decay = np.exp((self._window_at[slot] - now) / WINDOW_S)
        self._window_s[slot] = self._window_s[slot] * decay + work_s
        self._window_at[slot] = now
        if last_block is not None:
            self._waiting.setdefault((slot, last_block), []).append(booking)
        return booking

    def book_cached(self, slot: int, prompt_tokens: int, now: float) -> Booking:
        """A request whose prompt the slot holds whole.

        Engines announce a block once, so nothing will say that its prefill is done; waiting for its end instead would
        make the worker look stuck. It owes less than a block's work, which counts as none.
        """
        booking = self.book(slot, 0.0, prompt_tokens, None, now)
        booking.has_first_token = True
        return booking

    def book_unseen(self, slot: int, work_s: float, prompt_tokens: int, now: float) -> Booking:
        """A request whose first token nothing will show; it is taken to come when it is due by prediction.

        The head of the response is no sign of it: engines send that before the first token of a stream, and after the
        last one of any other answer.
        """
        booking = self.book(slot, work_s, prompt_tokens, None, now)
        self._unseen.setdefault(slot, {})[booking] = None
        return booking

    def elapse(self, now: float) -> None:
        """Unseen first tokens that are due have come, one after the other; to be called a few times a second."""
        speed = self.speed()
        for slot, unseen in list(self._unseen.items()):
            while unseen:
                first = next(iter(unseen))
                patience = _COUNTED_PATIENCE if self._first_tokens[slot] > 0 else 1.0
                due = max(self._progress_at(slot), first.placed_at) + patience * float(speed[slot]) * first.work_s
                if due > now:
                    break
                self._settle(first, due)
                self._uncounted[slot] -= 1

    def counted(self, slot: int, first_tokens: int, now: float) -> None:
        """A worker says how many first tokens it has given since it started: those of all pickers, and of strangers.

        Ours among them are taken to be as many as our share of its requests, and to be those of our oldest unseen
        ones. What has been settled in another way since the last count is not settled again.
        """
        before, self._first_tokens[slot] = int(self._first_tokens[slot]), first_tokens
        unseen = self._unseen.get(slot, {})
        if before < 0 or first_tokens < before or not unseen:
            self._uncounted[slot] = 0.0
            return
        ours = self.requests.item(slot)
        everybodys = ours + self.others.requests.item(slot) + self.strangers.requests.item(slot)
        self._uncounted[slot] += (first_tokens - before) * ours / max(1, everybodys)
        while unseen and self._uncounted[slot] >= 1:
            self._settle(next(iter(unseen)), now)
            self._uncounted[slot] -= 1

    def found(self, slot: int, block: int, now: float) -> None:
        """As `announced`, but when the worker announced it is not known: nothing is learnt of its speed."""
        for booking in self._waiting.get((slot, block), ())[:]:
            self._settle(booking, now)

    def announced(self, slot: int, block: int, now: float) -> None:
        """A worker has announced this block: prompts that end in it have been prefilled."""
        for booking in self._waiting.get((slot, block), ())[:]:
            self.first_token(booking, now)

    @property
    def awaited(self) -> bool:
        """Whether any booking waits for an announcement."""
        return bool(self._waiting)

    def first_token(self, booking: Booking, now: float) -> None:
        """This request's prefill is done. Further calls change nothing."""
        if booking.has_first_token or not booking.is_open:
            return
        # Nor does the worker's time count that went into other pickers' prompts.
        elsewhere = float(self.others.token_at[booking.slot])
        started = max(self._progress_at(booking.slot), elsewhere, booking.placed_at)
        self._settle(booking, now)
        self._calibrate(booking.slot, booking.work_s, now - started)

    def release(self, booking: Booking, now: float) -> None:
        """This request has ended, one way or another. Further calls change nothing."""
        if not booking.is_open:
            return
        if not booking.has_first_token:
            if booking.last_block is None:
                self._uncounted[booking.slot] -= 1
            self._settle(booking, now)
            if not booking.is_answered:
                self._take_back(booking)
        booking.is_open = False
        self.version += 1
        self.requests[booking.slot] -= 1
        self.context_tokens[booking.slot] -= booking.prompt_tokens

    def speed(self) -> Floats:
        """Observed over predicted prefill time, for each slot: 2 is a worker half as fast as assumed.

        Shrunk towards the pool's mean, so that a worker that was never tried counts as an average one and not as a
        slow one, which would keep it untried for ever.
        """
        return self._speed

    @property
    def progress_at(self) -> Floats:
        """When a slot last gave us a first token, saw a request end without one, or began to owe one."""
        return np.maximum(self._token_at, self._owing_since)

    def reported(self, slot: int, requests: int) -> None:
        """A worker says how many requests it has, running or waiting."""
        self.strangers.reported(slot, requests, self.requests.item(slot) + self.others.requests.item(slot))

    def context_of(self, slot: int) -> int:
        """Prompt tokens that all pickers have placed on this slot and not seen end."""
        return self.context_tokens.item(slot) + self.others.context_tokens.item(slot)

    def utilisation(self, now: float) -> Floats:
        """Share of a slot's time that the prefill work of the last seconds fills, 0 and up. Of our own placing."""
        return self._window_s * np.exp((self._window_at - now) / WINDOW_S) / WINDOW_S

    def outstanding(self, now: float) -> Outstanding:
        """Our own sums, those of the other pickers, and the requests of strangers.

        The arrays may be the books' own: they are to be read only.
        """
        others = self.others
        requests = self.requests + self.strangers.requests if self.strangers.total else self.requests
        if not others.pickers:
            return Outstanding(requests, self.context_tokens, self.prefill_s, self.progress_at, self.utilisation(now))
        owing_since = np.minimum(np.where(self.prefill_s > 0, self._owing_since, np.inf), others.owing_since)
        token_at = np.maximum(self._token_at, others.token_at)
        return Outstanding(
            requests + others.requests,
            self.context_tokens + others.context_tokens,
            self.prefill_s + others.prefill_s,
            np.where(np.isfinite(owing_since), np.maximum(token_at, owing_since), token_at),
            self.utilisation(now) + others.utilisation(now),
        )

    def share(self, epochs: npt.NDArray[np.uint64], now: float) -> Sums:
        """Our own sums for other pickers: of the slots on which there is something. `epochs`: shape (slots,)."""
        window_s = self._window_s * np.exp((self._window_at - now) / WINDOW_S)
        slots = np.flatnonzero((self.requests > 0) | (window_s > _LEAST_WINDOW_S))
        return Sums(
            epochs=epochs[slots],
            requests=self.requests[slots],
            context_tokens=self.context_tokens[slots],
            prefill_s=self.prefill_s[slots],
            window_s=window_s[slots],
            token_age_s=now - self._token_at[slots],
            owing_age_s=now - self._owing_since[slots],
        )

    def _progress_at(self, slot: int) -> float:
        return max(float(self._token_at[slot]), float(self._owing_since[slot]))

    def _settle(self, booking: Booking, now: float) -> None:
        booking.has_first_token = True
        slot = booking.slot
        # Sums of floats leave dust behind; less than a microsecond of work is none.
        rest = self.prefill_s[slot] - booking.work_s
        self.prefill_s[slot] = rest if rest > 1e-6 else 0.0
        self._token_at[slot] = max(now, self._progress_at(slot))
        self.version += 1
        if booking.last_block is None:
            self._forget_unseen(booking)
            return
        key = (slot, booking.last_block)
        waiting = self._waiting[key]
        waiting.remove(booking)
        if not waiting:
            del self._waiting[key]

    def _forget_unseen(self, booking: Booking) -> None:
        unseen = self._unseen.get(booking.slot, {})
        unseen.pop(booking, None)
        if not unseen:
            self._unseen.pop(booking.slot, None)

    def _take_back(self, booking: Booking) -> None:
        """Refused or given up: the work that was foreseen was not done, or not all of it."""
        undone = booking.work_s * np.exp((booking.placed_at - self._window_at[booking.slot]) / WINDOW_S)
        self._window_s[booking.slot] = max(0.0, self._window_s[booking.slot] - undone)

    def _calibrate(self, slot: int, predicted_s: float, observed_s: float) -> None:
        self._observed_s[slot] = self._observed_s[slot] * _CALIBRATION_DECAY + observed_s
        self._predicted_s[slot] = self._predicted_s[slot] * _CALIBRATION_DECAY + predicted_s
        self._learn()

    def _learn(self) -> None:
        """Works out `speed`: each decision reads it, and it changes only where this is called."""
        predicted = self._predicted_s.sum()
        pool = (self._observed_s.sum() + CALIBRATION_PRIOR_S) / (predicted + CALIBRATION_PRIOR_S)
        self._speed = (self._observed_s + CALIBRATION_PRIOR_S * pool) / (self._predicted_s + CALIBRATION_PRIOR_S)
