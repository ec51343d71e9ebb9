"""A cluster that grows and shrinks: workers start when a scaler asks for them, take their time, and drain when they go.

The scalers see what they would see in production: Picker's own signals, or what the workers report.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import Protocol

from picker.scaling.settings import Scaling
from picker.scaling.signals import Signals
from picker.simulation.discrete.cluster import Cluster, _Exchange, _Run, _Worker, model_of
from picker.simulation.discrete.gateway import MODEL, Away, Gateway, Placed
from picker.simulation.discrete.outcome import Outcome
from picker.simulation.discrete.workload import Ask, Source

LOOK_EVERY_S = 15.0
"""As Kubernetes' horizontal autoscaler does."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What a scaler sees of the workers: how many there are, started or starting, and of those that serve, each one's
    share of time with work since the last look, and its requests.
    """

    count: int
    busy: tuple[float, ...]
    requests: tuple[int, ...]


class Scaler(Protocol):
    """Says how many workers there should be."""

    def placed(self, ask: Ask, prefill_s: float, gateway: Gateway, now: float) -> None:
        """A request was placed; so long is its prefill predicted to take."""

    def desired(self, gateway: Gateway, fleet: Fleet, now: float) -> int:
        """The number of workers, asked for every `LOOK_EVERY_S`."""


class Predictive:
    """Picker's signals, as in production."""

    def __init__(self, settings: Scaling, cluster: Cluster):
        self._signals = Signals(settings, cluster.model or model_of(cluster.profile))

    def placed(self, ask: Ask, prefill_s: float, gateway: Gateway, now: float) -> None:
        """As `Scaler.placed`."""
        self._signals.asked(MODEL, "", prefill_s, ask.prompt_tokens, gateway.view.lengths.mean(MODEL), now)

    def desired(self, gateway: Gateway, fleet: Fleet, now: float) -> int:
        """As `Scaler.desired`."""
        return self._signals.read(gateway.view, {}, now)[MODEL].desired.workers


class Horizontal:
    """Kubernetes' horizontal autoscaler: workers in proportion to a measure over its target.

    `measure`: "busy", the share of time in which a GPU has work, or "requests", running and waiting on a worker.
    """

    def __init__(self, measure: str, target: float, least: int, most: int, down_after_s: float):
        self._measure = measure
        self._target = target
        self._least, self._most = least, most
        self._down_after_s = down_after_s
        self._lately: deque[tuple[float, int]] = deque()

    def placed(self, ask: Ask, prefill_s: float, gateway: Gateway, now: float) -> None:
        """Does not matter here."""

    def desired(self, gateway: Gateway, fleet: Fleet, now: float) -> int:
        """As `Scaler.desired`. Workers that start count as idle, as they do there."""
        total = sum(fleet.busy if self._measure == "busy" else fleet.requests)
        ratio = total / self._target / max(1, fleet.count)
        wanted = fleet.count if abs(ratio - 1) <= 0.1 else math.ceil(fleet.count * ratio - 1e-9)
        self._lately.append((now, min(max(wanted, self._least), self._most)))
        while now - self._lately[0][0] > self._down_after_s:
            self._lately.popleft()
        return max(count for _, count in self._lately)


@dataclass(frozen=True, slots=True)
class Grown:
    """A run with what it used: GPU-hours of all workers from when they were asked for until they were gone."""

    outcome: Outcome
    gpu_hours: float
    most: int


def simulate(cluster: Cluster, source: Source, seed: int, scaler: Scaler, startup_s: float, first: int) -> Grown:
    """As `cluster.simulate`; `cluster.workers` is the most there can be, `first` how many there are at the start."""
    run = _Elastic(cluster, source, seed, scaler, startup_s, first)
    outcome = run.go()
    return Grown(outcome, run.worker_s / 3600, run.most)


class _Elastic(_Run):
    def __init__(self, cluster: Cluster, source: Source, seed: int, scaler: Scaler, startup_s: float, first: int):
        super().__init__(cluster, source, seed, None, None)
        self.worker_s = 0.0
        self.most = first
        self._scaler = scaler
        self._startup_s = startup_s
        self._counted_at = 0.0
        self._looked_at = 0.0
        self._starting: set[int] = set()
        self._leaving: set[int] = set()
        self._busy = [0.0] * cluster.workers
        self._busy_since: dict[int, float] = {}
        for worker in self._workers[first:]:
            self._remove(worker)
        self._at(LOOK_EVERY_S, self._look)

    def _go(self, now: float, gateway: Gateway, ask: Ask, outcome: Placed | Away) -> None:
        if isinstance(outcome, Placed):
            self._scaler.placed(ask, outcome.booking.work_s, gateway, now)
        super()._go(now, gateway, ask, outcome)

    def _look(self, now: float) -> None:
        self._count(now)
        serving = [w for w in self._workers if w.is_alive and w.number not in self._leaving]
        requests = tuple(w.engine.running + w.engine.waiting for w in serving)
        fleet = Fleet(len(serving) + len(self._starting), self._shares(serving, now), requests)
        wanted = min(max(0, self._scaler.desired(self._gateways[0], fleet, now)), len(self._workers))
        if wanted > fleet.count:
            self._grow(wanted - fleet.count, now)
        elif wanted < fleet.count:
            self._shrink(fleet.count - wanted, serving, now)
        self._at(now + LOOK_EVERY_S, self._look)

    def _grow(self, more: int, now: float) -> None:
        for number in sorted(self._leaving)[:more]:
            self._leaving.remove(number)
            self._tell(self._workers[number], "ready")
            more -= 1
        idle = [w.number for w in self._workers if not w.is_alive and w.number not in self._starting]
        for number in idle[:more]:
            self._starting.add(number)
            self._at(now + self._startup_s, self._start, self._workers[number])
        self.most = max(self.most, self._present())

    def _shrink(self, fewer: int, serving: list[_Worker], now: float) -> None:
        # Whoever has the least to do goes; one that starts is waited for, as Kubernetes does not know better either.
        serving.sort(key=lambda w: w.engine.running + w.engine.waiting)
        for worker in serving[: min(fewer, len(serving) - 1)]:
            self._leaving.add(worker.number)
            self._tell(worker, "draining")
            self._leave_when_empty(now, worker)

    def _leave_when_empty(self, now: float, worker: _Worker) -> None:
        if worker.number not in self._leaving:
            return
        if worker.exchanges:
            self._at(now + 1.0, self._leave_when_empty, worker)
            return
        self._count(now)
        self._leaving.remove(worker.number)
        self._remove(worker)

    def _start(self, now: float, worker: _Worker) -> None:
        self._count(now)
        self._starting.remove(worker.number)
        self._revive(now, worker, self._engine())

    def _remove(self, worker: _Worker) -> None:
        worker.is_alive = False
        worker.wake += 1
        for gateway in self._gateways:
            gateway.retire(worker.number)

    def _tell(self, worker: _Worker, state: str) -> None:
        for gateway in self._gateways:
            gateway.change(worker.number, replace(self._facts(worker), state=state))

    def _present(self) -> int:
        return sum(w.is_alive for w in self._workers) + len(self._starting)

    def _count(self, now: float) -> None:
        self.worker_s += (now - self._counted_at) * self._present()
        self._counted_at = now

    def _submit(self, now: float, exchange: _Exchange) -> bool:
        is_taken = super()._submit(now, exchange)
        self._mark(exchange.worker, now)
        return is_taken

    def _step_ended(self, now: float, worker: _Worker, wake: int) -> None:
        super()._step_ended(now, worker, wake)
        self._mark(worker, now)

    def _mark(self, worker: _Worker, now: float) -> None:
        if not worker.engine.is_idle:
            self._busy_since.setdefault(worker.number, now)
        elif (since := self._busy_since.pop(worker.number, None)) is not None:
            self._busy[worker.number] += now - max(since, self._looked_at)

    def _shares(self, serving: list[_Worker], now: float) -> tuple[float, ...]:
        for number, since in self._busy_since.items():
            self._busy[number] += now - max(since, self._looked_at)
        shares = tuple(min(1.0, self._busy[w.number] / (now - self._looked_at)) for w in serving)
        self._busy = [0.0] * len(self._busy)
        self._looked_at = now
        return shares
