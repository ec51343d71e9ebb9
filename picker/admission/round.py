"""One look over all that waits: whose turn it is, and who has been looked at in vain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from picker.admission.entry import Entry
from picker.admission.lane import Lane
from picker.admission.waiting import WaitingRoom


class Round:
    """Looks at no more than `scan` requests of a class in vain, in each lane, and shares them among its tenants.

    Otherwise those of the tenant whose turn it is by right, and whose workers are all busy, would be all that is seen.
    """

    def __init__(self, waiting: WaitingRoom, scan: int):
        self._waiting = waiting
        self._scan = scan
        self._missed: list[tuple[Lane, Entry]] = []
        self._misses: Counter[Hashable] = Counter()
        self._passed_over: dict[Lane, set[int]] = {}

    def __repr__(self) -> str:
        return f"<Round {len(self._missed)} in vain>"

    def __iter__(self) -> Iterator[tuple[Lane, Entry]]:
        """In order, out of the queue; each to be served, dropped, or passed over before the next one."""
        while turn := self._waiting.next_lane(self._passed_over):
            lane, rank = turn
            entry = lane.take(rank)
            if entry is None:
                self._end_class(lane, rank)
            else:
                yield lane, entry

    def pass_over(self, lane: Lane, entry: Entry) -> None:
        """It waits on."""
        self._missed.append((lane, entry))
        of_class, of_tenant = (lane, entry.rank), (lane, entry.rank, entry.tenant)
        self._misses.update((of_class, of_tenant))
        if self._misses[of_class] >= self._scan:
            self._end_class(lane, entry.rank)
        elif self._misses[of_tenant] >= max(1, self._scan // self._waiting.tenants(entry.rank)):
            lane.skip(entry)

    def close(self) -> None:
        """Whoever was passed over is where it was."""
        for lane, entry in self._missed:
            lane.put_back(entry)

    def _end_class(self, lane: Lane, rank: int) -> None:
        self._passed_over.setdefault(lane, set()).add(rank)
