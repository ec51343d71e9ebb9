"""Requests on their way that may be cut for one of a higher class: only before their response has begun."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Running:
    rank: int
    number: int
    after_s: float


class Preemption:
    """Who is at which worker and may be cut, and whom somebody of a higher class is waiting for.

    A request is named by what the caller likes. `pause_s`: a worker whose last cut is no longer ago gets room by that
    one, and nobody else is cut there.
    """

    def __init__(self, pause_s: float):
        self._pause_s = pause_s
        self._at: dict[int, dict[Hashable, _Running]] = {}
        self._slots: dict[Hashable, int] = {}
        self._wanted: dict[int, tuple[int, float]] = {}
        self._last: dict[int, float] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._slots)

    def __repr__(self) -> str:
        return f"<Preemption {len(self)} may be cut>"

    def placed(self, request: Hashable, slot: int, rank: int, after_s: float) -> None:
        """A request is on its way, and may be cut for one of a higher class that has waited for `after_s`."""
        self._number += 1
        self._slots[request] = slot
        self._at.setdefault(slot, {})[request] = _Running(rank, self._number, after_s)

    def gone(self, request: Hashable) -> None:
        """It is being answered, or is over. What was never placed is none of our business."""
        slot = self._slots.pop(request, None)
        if slot is None:
            return
        del self._at[slot][request]
        if not self._at[slot]:
            del self._at[slot]
            self._last.pop(slot, None)

    def wanted(self, slot: int, rank: int, waited_s: float) -> None:
        """A request of this class has waited so long, and this worker has no room for it."""
        if slot in self._at:
            before = self._wanted.get(slot, (rank, waited_s))
            self._wanted[slot] = min(before[0], rank), max(before[1], waited_s)

    def victims(self, now: float) -> Iterator[Hashable]:
        """Whom to cut now: at each worker that is waited for one, of the lowest class the one that came last."""
        wanted, self._wanted = self._wanted, {}
        for slot, (rank, waited_s) in wanted.items():
            lower = {
                request: running
                for request, running in self._at.get(slot, {}).items()
                if running.rank > rank and running.after_s <= waited_s
            }
            if lower and now - self._last.get(slot, -self._pause_s) >= self._pause_s:
                self._last[slot] = now
                yield max(lower, key=lambda request: (lower[request].rank, lower[request].number))
