"""All that waits: a lane for those whom the same workers may serve, bounds of number, bytes and tokens, and of time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from picker.admission.entry import Entry
from picker.admission.lane import Lane
from picker.admission.settings import Bounds

MOST_LANES = 256
"""Beyond it all share one: what makes a lane comes from outside."""
_SLACK = 64


class Sums:
    """What waits somewhere: requests, bytes, tokens."""

    __slots__ = ("bytes", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = self.bytes = self.tokens = 0

    def __repr__(self) -> str:
        return f"<Sums {self.requests} requests, {self.bytes} bytes, {self.tokens} tokens>"

    def add(self, entry: Entry, sign: int) -> None:
        """One comes (1) or goes (-1)."""
        self.requests += sign
        self.bytes += sign * entry.size
        self.tokens += sign * entry.tokens

    def admits(self, bounds: Bounds, size: int, tokens: int, fill: float = 1.0) -> bool:
        """Whether one more of this size stays within this share of the bounds. What is alone always fits."""
        return all(
            bound is None or now + more <= bound * fill or not self.requests
            for now, more, bound in (
                (self.requests, 1, bounds.requests),
                (self.bytes, size, bounds.bytes),
                (self.tokens, tokens, bounds.tokens),
            )
        )


class WaitingRoom:
    """Everything that waits. `shares` are those of the classes, the highest first; see `Lane`."""

    def __init__(self, shares: Sequence[float], weight_of: Callable[[str | int], float]):
        self._shares = shares
        self._weight_of = weight_of
        self._lanes: dict[Hashable, Lane] = {}
        self._served = 0.0
        self._leaving: list[tuple[float, int, Entry]] = []
        self._number = 0
        self.total = Sums()
        self.by_class = [Sums() for _ in shares]
        self._by_tenant: dict[tuple[int, str | int], Sums] = {}
        self._tenants = [0] * len(shares)

    def __len__(self) -> int:
        return self.total.requests

    def __repr__(self) -> str:
        return f"<WaitingRoom {self.total!r}, {len(self._lanes)} lanes>"

    def add(self, entry: Entry, until: float | None = None) -> None:
        """A request begins to wait, until `leave_at` or another time. Whether there is a place is asked before."""
        self._number += 1
        entry.number, entry.is_waiting = self._number, True
        entry.until = entry.leave_at if until is None else until
        if entry.lane not in self._lanes and len(self._lanes) >= MOST_LANES:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane}
            entry.lane = entry.lane if len(self._lanes) < MOST_LANES else None
        lane = self._lanes.get(entry.lane)
        if lane is None:
            lane = self._lanes[entry.lane] = Lane(self._shares, self._weight_of, self._served)
        lane.add(entry)
        heappush(self._leaving, (entry.until, entry.number, entry))
        self._count(entry, 1)

    def leave(self, entry: Entry) -> bool:
        """Ends a wait, for whatever reason; whether it had not ended before. Not for what is taken."""
        if not entry.is_waiting:
            return False
        entry.is_waiting = False
        self._lanes[entry.lane].left(entry)
        self._count(entry, -1)
        return True

    def expired(self, now: float) -> Iterator[Entry]:
        """Those whose time is up, out of the queue."""
        while self._leaving and (self._leaving[0][0] <= now or not self._leaving[0][2].is_waiting):
            entry = heappop(self._leaving)[2]
            if self.leave(entry):
                yield entry

    def everybody(self) -> Iterator[Entry]:
        """All of them, out of the queue."""
        for _, _, entry in sorted(self._leaving, key=lambda item: item[1]):
            if self.leave(entry):
                yield entry

    def __iter__(self) -> Iterator[Entry]:
        return (entry for _, _, entry in self._leaving if entry.is_waiting)

    def oldest(self) -> Entry | None:
        """Who has waited longest. O(n)."""
        return min(self, key=lambda entry: entry.arrived_at, default=None)

    def is_first(self, rank: int, lane: Hashable) -> bool:
        """Whether a request of this class would wait for nobody: none above it, and none in its lane."""
        if not self.total.requests:
            return True
        if any(sums.requests for sums in self.by_class[:rank]):
            return False
        own = self._lanes.get(lane)
        return own is None or not own

    def ahead(self, entry: Entry) -> int:
        """How many of its lane and of no lower class wait."""
        lane = self._lanes.get(entry.lane)
        return sum(lane.waiting(rank) for rank in range(entry.rank + 1)) if lane else 0

    def down_to(self, rank: int) -> Sums:
        """What waits in this class and those above it."""
        found = Sums()
        for sums in self.by_class[: rank + 1]:
            found.requests += sums.requests
            found.bytes += sums.bytes
            found.tokens += sums.tokens
        return found

    def of_tenant(self, rank: int, tenant: str | int) -> Sums:
        """What waits of a tenant in a class."""
        return self._by_tenant.get((rank, tenant), _NOTHING)

    def tenants(self, rank: int) -> int:
        """How many tenants wait in a class."""
        return self._tenants[rank]

    def next_lane(self, passed_over: dict[Lane, set[int]]) -> tuple[Lane, int] | None:
        """The lane and the class whose turn it is, but for the classes that were passed over in each."""
        turns = [(rank, lane.served, lane) for lane in self._lanes.values() if (rank := _turn(lane, passed_over)) >= 0]
        if not turns:
            return None
        rank, _, lane = min(turns, key=lambda turn: turn[:2])
        return lane, rank

    def served(self, lane: Lane, entry: Entry, cost: float) -> None:
        """What was taken has gone to a worker and costs so many tokens."""
        self._served = max(self._served, lane.served)
        lane.serve(entry, cost)
        self._end(entry)

    def dropped(self, lane: Lane, entry: Entry) -> None:
        """What was taken is not served."""
        lane.drop(entry)
        self._end(entry)

    def charge(self, entry: Entry, tokens: float) -> None:
        """What was served has cost more tokens than was thought, or less."""
        if lane := self._lanes.get(entry.lane):
            lane.charge(entry, tokens)

    def last_below(self, rank: int) -> Entry | None:
        """Who gives way first: the last of the lowest class below this one."""
        for lower in range(len(self._shares) - 1, rank, -1):
            if self.by_class[lower].requests:
                fullest = max(self._lanes.values(), key=lambda lane: lane.waiting(lower))
                return fullest.last(lower)
        return None

    def _end(self, entry: Entry) -> None:
        entry.is_waiting = False
        self._count(entry, -1)

    def _count(self, entry: Entry, sign: int) -> None:
        self.total.add(entry, sign)
        self.by_class[entry.rank].add(entry, sign)
        self._count_tenant(entry, sign)
        if len(self._leaving) > 2 * self.total.requests + _SLACK:
            self._leaving = [item for item in self._leaving if item[2].is_waiting]
            heapify(self._leaving)

    def _count_tenant(self, entry: Entry, sign: int) -> None:
        key = (entry.rank, entry.tenant)
        sums = self._by_tenant.get(key)
        if sums is None:
            sums = self._by_tenant[key] = Sums()
            self._tenants[entry.rank] += 1
        sums.add(entry, sign)
        if not sums.requests:
            del self._by_tenant[key]
            self._tenants[entry.rank] -= 1


_NOTHING = Sums()


def _turn(lane: Lane, passed_over: dict[Lane, set[int]]) -> int:
    rank = lane.turn(passed_over.get(lane, ()))
    return -1 if rank is None else rank
