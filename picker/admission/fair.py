"""Fairness among tenants: each is served in proportion to its weight, by tokens, whoever asks more often.

Start-time fair queueing. A tenant's virtual time is what it has been served, over its weight; the least is next. One
that comes, or comes back, starts at the virtual time of whoever is being served: it gets no credit for the past, and
what it owes is not forgotten while it is away. Of two tenants that wait all the time, what they have been served
differs by one request of each at most. All in O(log n).

What is taken is charged at once, so that looking on goes to the next tenant; it is then served, or put back.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from picker.admission.entry import Entry

_SLACK = 64
"""So much that is no longer of use may lie about."""


class _Flow:
    """A tenant's requests, the earliest deadline first. Those that have left stay in the heap until they are met."""

    __slots__ = ("heap", "live", "stamp", "virtual", "weight")

    def __init__(self, weight: float, virtual: float):
        self.weight = weight
        self.virtual = virtual
        self.heap: list[tuple[tuple[float, int], Entry]] = []
        self.live = 0
        self.stamp = 0
        """Of its place in the queue of tenants; older ones mean nothing."""

    def push(self, entry: Entry) -> None:
        heappush(self.heap, (entry.order, entry))
        self.live += 1

    def pop(self) -> Entry:
        while not (entry := heappop(self.heap)[1]).is_waiting:
            pass
        self.live -= 1
        return entry

    def left(self) -> None:
        self.live -= 1
        if len(self.heap) > 2 * self.live + _SLACK:
            self.heap = [item for item in self.heap if item[1].is_waiting]
            heapify(self.heap)


class FairQueue:
    """The requests that wait in one class, of all tenants. `weight_of` gives a tenant's weight."""

    def __init__(self, weight_of: Callable[[str | int], float]):
        self._weight_of = weight_of
        self._flows: dict[str | int, _Flow] = {}
        self._ready: list[tuple[float, int, str | int]] = []
        self._virtual = 0.0
        self._live = 0
        self._stamps = 0

    def __len__(self) -> int:
        return self._live

    def __repr__(self) -> str:
        return f"<FairQueue {self._live} requests, {len(self._flows)} tenants>"

    def add(self, entry: Entry) -> None:
        """A request begins to wait."""
        flow = self._flows.get(entry.tenant)
        if flow is None:
            self._collect()
            flow = self._flows[entry.tenant] = _Flow(self._weight_of(entry.tenant), self._virtual)
        if not flow.live:
            flow.virtual = max(flow.virtual, self._virtual)
        flow.push(entry)
        self._live += 1
        self._place(entry.tenant, flow)

    def take(self) -> Entry | None:
        """The next request, out of the queue and charged; to be told `serve` or `put_back` of before anything else."""
        while self._ready:
            _, stamp, tenant = heappop(self._ready)
            flow = self._flows.get(tenant)
            if flow is None or stamp != flow.stamp or not flow.live:
                continue
            entry = flow.pop()
            self._live -= 1
            entry.start = flow.virtual
            flow.virtual += entry.cost / flow.weight
            self._place(tenant, flow)
            return entry
        return None

    def skip(self, tenant: str | int) -> None:
        """This tenant is not to be taken from, until what was taken is put back."""
        self._stamps += 1
        self._flows[tenant].stamp = self._stamps

    def serve(self, entry: Entry, cost: float) -> None:
        """What was taken is served, and costs so many tokens."""
        self.charge(entry.tenant, cost - entry.cost)
        # Once nobody waits, nobody owes anything.
        served = entry.start if self._live else self._flows[entry.tenant].virtual
        self._virtual = max(self._virtual, served)

    def put_back(self, entry: Entry) -> None:
        """What was taken still waits, where it was."""
        flow = self._flows[entry.tenant]
        flow.push(entry)
        self._live += 1
        self.charge(entry.tenant, -entry.cost)

    def drop(self, entry: Entry) -> None:
        """What was taken is not served: its tenant pays nothing."""
        self.charge(entry.tenant, -entry.cost)

    def charge(self, tenant: str | int, tokens: float) -> None:
        """A tenant has been served more than it was charged for, or less."""
        if flow := self._flows.get(tenant):
            flow.virtual += tokens / flow.weight
            self._place(tenant, flow)

    def left(self, entry: Entry) -> None:
        """A request that waited, and whose `is_waiting` is false by now, has gone."""
        self._flows[entry.tenant].left()
        self._live -= 1

    def last(self) -> Entry | None:
        """Who would be served last: of the tenant that is furthest ahead, the latest deadline. O(n)."""
        waiting = [flow for flow in self._flows.values() if flow.live]
        if not waiting:
            return None
        flow = max(waiting, key=lambda each: each.virtual)
        return max((item for item in flow.heap if item[1].is_waiting), key=lambda item: item[0])[1]

    def _place(self, tenant: str | int, flow: _Flow) -> None:
        self._stamps += 1
        flow.stamp = self._stamps
        if flow.live:
            heappush(self._ready, (flow.virtual, flow.stamp, tenant))
        if len(self._ready) > 2 * len(self._flows) + _SLACK:
            self._tidy()

    def _tidy(self) -> None:
        flows = self._flows
        self._ready = [each for each in self._ready if each[2] in flows and flows[each[2]].stamp == each[1]]
        heapify(self._ready)

    def _collect(self) -> None:
        """Forgets tenants of whom nobody waits and who owe nothing, once they are most of those there are."""
        if len(self._flows) > _SLACK and len(self._flows) > 2 * self._live:
            gone = [key for key, flow in self._flows.items() if not flow.live and flow.virtual <= self._virtual]
            for key in gone:
                del self._flows[key]
