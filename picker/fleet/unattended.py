"""Endpoints of the pool that Kubernetes tells of, and what agents tell, made to agree in one view. Pure.

An endpoint that an agent speaks for is that agent's worker. One that nobody speaks for is a worker as well: it may be
asked for any model, and is placed by what pickers themselves have sent there. A worker that the pool does not have is
left out, whatever its agent says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import xxhash

from picker.fleet.view import View
from picker.redisview.records import WorkerRecord, WorkerState


@dataclass(frozen=True, slots=True)
class PoolEndpoint:
    """One of the pool. `address` is canonical; another `incarnation` says that its cache may have begun anew."""

    name: str
    address: str
    incarnation: str
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def epoch(self) -> int:
        """The same in all pickers, so that they know of whom they tell one another."""
        return xxhash.xxh3_64_intdigest(f"{self.name} {self.address} {self.incarnation}".encode()) >> 1


class Unattended:
    """The workers of a view for which no agent speaks."""

    def __init__(self, view: View):
        self._view = view
        self._pool: dict[str, PoolEndpoint] = {}
        self._ours: dict[tuple[str, int], PoolEndpoint] = {}
        self._seen: int | None = None

    def __repr__(self) -> str:
        return f"<Unattended {self.names()}>"

    def names(self) -> list[str]:
        """Of these workers."""
        return sorted(name for name, _ in self._ours)

    def take(self, pool: Iterable[PoolEndpoint], now: float) -> None:
        """These are the endpoints of the pool."""
        self._pool = {each.address: each for each in pool}
        self._view.confine(frozenset(self._pool))
        self._settle(now)

    def look(self, now: float) -> None:
        """Agents may have come or gone."""
        if self._view.version != self._seen:
            self._settle(now)

    def _settle(self, now: float) -> None:
        view = self._view
        # An agent may have registered the name meanwhile; then the slot is its worker's.
        self._ours = {key: each for key, each in self._ours.items() if view.slot_of(*key) is not None}
        attended = [facts for facts in view.roster().values() if (facts.worker, facts.epoch) not in self._ours]
        endpoints, names = {facts.endpoint for facts in attended}, {facts.worker for facts in attended}
        wanted = {
            (each.name, each.epoch): each
            for each in self._pool.values()
            if each.address not in endpoints and each.name not in names
        }
        for key in self._ours.keys() - wanted.keys():
            if (slot := view.slot_of(*key)) is not None:
                view.retire(slot)
        for key in wanted.keys() - self._ours.keys():
            view.admit(_record(wanted[key]), now, is_attended=False)
        self._ours, self._seen = wanted, view.version


def _record(endpoint: PoolEndpoint) -> WorkerRecord:
    return WorkerRecord(
        worker=endpoint.name,
        epoch=endpoint.epoch,
        endpoint=endpoint.address,
        state=WorkerState.READY,
        publishes_kv=False,
        labels=endpoint.labels,
    )
