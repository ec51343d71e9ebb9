"""The requests that the same workers may serve: classes, one above the other, of which none starves.

The highest class goes first. A class with a share earns that share of the tokens that are served while its requests
wait below another class; once it has earned what a request costs, it is its turn, and pays. Nothing is earned in
advance: a class in which nobody waits begins with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from picker.admission.entry import Entry
from picker.admission.fair import FairQueue

_NEWS = 0.1
"""Weight of the last request in what one usually costs."""


class Lane:
    """One queue for each class; `shares` are theirs, the highest class first. `served` is in tokens."""

    def __init__(self, shares: Sequence[float], weight_of: Callable[[str | int], float], served: float = 0.0):
        self._shares = shares
        self._queues = [FairQueue(weight_of) for _ in shares]
        self._earned = [0.0] * len(shares)
        self._usual_cost = 0.0
        self.served = served

    def __len__(self) -> int:
        return sum(map(len, self._queues))

    def __repr__(self) -> str:
        return f"<Lane {' '.join(str(len(queue)) for queue in self._queues)}>"

    def waiting(self, rank: int) -> int:
        """Requests of this class."""
        return len(self._queues[rank])

    def turn(self, passed_over: Iterable[int] = ()) -> int | None:
        """The class whose turn it is, but for these; None where nobody waits."""
        ranks = [rank for rank, queue in enumerate(self._queues) if queue and rank not in passed_over]
        if not ranks:
            return None
        paid = [rank for rank in ranks if self._earned[rank] > self._usual_cost]
        return max(paid, key=self._earned.__getitem__, default=ranks[0])

    def add(self, entry: Entry) -> None:
        """A request begins to wait."""
        if not self._queues[entry.rank]:
            self._earned[entry.rank] = min(0.0, self._earned[entry.rank])
        self._queues[entry.rank].add(entry)

    def take(self, rank: int) -> Entry | None:
        """See `FairQueue.take`."""
        return self._queues[rank].take()

    def skip(self, entry: Entry) -> None:
        """See `FairQueue.skip`."""
        self._queues[entry.rank].skip(entry.tenant)

    def put_back(self, entry: Entry) -> None:
        """See `FairQueue.put_back`."""
        self._queues[entry.rank].put_back(entry)

    def drop(self, entry: Entry) -> None:
        """See `FairQueue.drop`."""
        self._queues[entry.rank].drop(entry)

    def serve(self, entry: Entry, cost: float) -> None:
        """What was taken is served, and costs so many tokens."""
        self._queues[entry.rank].serve(entry, cost)
        self.served += cost
        self._usual_cost += (cost - self._usual_cost) * (_NEWS if self._usual_cost else 1.0)
        waiting = [rank for rank, queue in enumerate(self._queues) if queue]
        for rank in waiting[1:]:
            self._earned[rank] += self._shares[rank] * cost
        if waiting and waiting[0] < entry.rank:
            self._earned[entry.rank] -= cost

    def charge(self, entry: Entry, tokens: float) -> None:
        """What was served has cost more than was thought, or less."""
        self._queues[entry.rank].charge(entry.tenant, tokens)

    def left(self, entry: Entry) -> None:
        """A request that waited has gone."""
        self._queues[entry.rank].left(entry)

    def last(self, rank: int) -> Entry | None:
        """See `FairQueue.last`."""
        return self._queues[rank].last()
