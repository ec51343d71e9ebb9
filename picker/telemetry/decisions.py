"""Decisions as metrics: who asked for what, where it went, where the time went, and how it ended.

Label values are names that we know (served models, tenants and objectives of the configuration) and `other`. What is
decided is only put aside at first: many together are counted for a fraction of what they cost one by one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter as Counts
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from picker.events.decided import Decided
from picker.events.recorder import Recorder
from picker.events.shortened import Roster, best_hit_tokens, is_served
from picker.scheduling.decision import Routed
from picker.telemetry.labels import OTHER
from picker.telemetry.tallies import CounterTally, HistogramTally

_STAGE_SECONDS = (0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_MOST = 1000
_MOST_MODELS = 100
_MOST_NAMES = 2000
_AT_ONCE = 64
"""Counted together: enough that it is cheap, so few that the event loop is held for a fraction of a millisecond."""
_LOG_WAIT_S = 2.0
"""Only Envoy's access log, which comes in batches of a second, tells of a client that left in the middle."""
_MOST_UNLOGGED = 10_000

T = TypeVar("T")


class _New(NamedTuple):
    """A decision, and of it what the ring may have let go of by the time it is counted."""

    decided: Decided
    model: str
    roster: Roster
    decision: Routed | None


class DecisionMetrics(Collector):
    """Listens to a recorder. `running` are the requests that are placed and not ended, by model."""

    def __init__(self, registry: CollectorRegistry, recorder: Recorder, most_workers: int = _MOST):
        # Before the metrics themselves, so that a scrape comes here first.
        registry.register(self)
        self.running: Counts[str] = Counts()
        self._names: dict[str, str] = {}
        self._roster: object = None
        self._new: list[_New] = []
        self._over: list[Decided] = []
        self._unlogged: deque[Decided] = deque()
        self._recorder = recorder
        # For the log of the first request, whether or not one comes at all.
        self._has_waited = False
        self._counting = threading.Lock()

        def counter(name: str, text: str, *labels: str, most: int = _MOST) -> CounterTally:
            return CounterTally(registry, f"picker_{name}", text, labels, most)

        def histogram(name: str, text: str, label: str, bounds: Sequence[float]) -> HistogramTally:
            return HistogramTally(registry, f"picker_{name}", text, label, bounds, _MOST_MODELS)

        who, each = ("model", "tenant", "objective"), most_workers
        self._routed = counter("routed_requests", "Requests that were placed, by who asked for what.", *who)
        self._refused = counter("refused_requests", "Requests that were refused, likewise.", *who, "reason")
        self._ended = counter("ended_requests", "Placed requests by how they ended.", "end", "gpu", "version")
        self._picks = counter("worker_picks", "Requests placed on a worker.", "worker", most=each)
        text = "Requests placed on a worker that another one served."
        self._elsewhere = counter("worker_picks_not_honoured", text, "worker", most=each)
        self._adapter_loads = counter("adapter_loads", "Requests placed where their adapter was not loaded.", "model")
        text = "Prompt tokens cached on another eligible worker and not on the chosen one."
        self._lost_hits = counter("hit_tokens_forgone", text, "model")
        self._stages = histogram("stage_seconds", "Time of a decision by stage.", "stage", _STAGE_SECONDS)
        text = "Time from a decision to the head of the response."
        self._first_byte = histogram("first_byte_seconds", text, "model", _SECONDS)
        text = "Time from a decision to the end of its request."
        self._duration = histogram("request_seconds", text, "model", _SECONDS)
        recorder.on_decided.append(self._decided)
        recorder.on_ended.append(self._end)

    def describe(self) -> Iterable[Metric]:
        """Of prometheus_client: no metrics but those that are registered by themselves."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Of prometheus_client: what was put aside is counted now."""
        self.count()
        return ()

    def count(self) -> None:
        """Counts what was put aside. A scrape's thread may be at it already: then that does it, and nobody waits."""
        if self._counting.acquire(blocking=False):
            try:
                self._count_new(_taken(self._new))
                over = _taken(self._over)
                self.running.subtract(decided.label for decided in over)
                self._unlogged.extend(over)
                self._count_over(list(self._known(time.monotonic())))
            finally:
                self._counting.release()

    def keep(self, workers: Container[str]) -> None:
        """These are the workers that there are: what was counted of others goes when there is no more room."""
        with self._counting:
            for counter in (self._picks, self._elsewhere):
                counter.keep(workers)

    def routed(self) -> dict[str, float]:
        """Requests that were placed, by model."""
        found: Counts[str] = Counts()
        for (model, _, _), count in self._routed.items():
            found[model] += int(count)
        return dict(found)

    def _decided(self, decided: Decided) -> None:
        about = decided.about
        self._new.append(_New(decided, (about.model if about else "") or "", decided.roster, decided.decision))
        if len(self._new) >= _AT_ONCE:
            self.count()

    def _end(self, decided: Decided) -> None:
        if decided.verdict == "route":
            self._over.append(decided)
            if len(self._over) >= _AT_ONCE:
                self.count()

    def _known(self, now: float) -> Iterator[Decided]:
        """Those that have ended of which nothing more is to be heard."""
        waiting = self._unlogged
        waits = self._recorder.hears_log or not self._has_waited
        waits_until = now - _LOG_WAIT_S if waits else math.inf
        while waiting and (
            waiting[0].is_logged or (waiting[0].ended_at or 0.0) <= waits_until or len(waiting) > _MOST_UNLOGGED
        ):
            decided = waiting.popleft()
            self._has_waited |= not decided.is_logged
            yield decided

    def _count_new(self, found: Sequence[_New]) -> None:
        self._count_stages([each.decided for each in found])
        for each in found:
            each.decided.label = self._model(each)
        refused = [each.decided for each in found if each.decided.verdict == "refuse"]
        self._refused.add_each((*_asked(decided), decided.reason) for decided in refused)
        placed = [each.decided for each in found if each.decision]
        self._routed.add_each(map(_asked, placed))
        self.running.update(decided.label for decided in placed)
        self._picks.add_each((decided.chosen.worker if decided.chosen else OTHER,) for decided in placed)
        for each in found:
            if each.decision:
                self._count_hits(each.decided.label, each.decision)

    def _count_stages(self, found: Sequence[Decided]) -> None:
        moments = [decided.moment for decided in found if decided.moment.known_at]
        self._stages.add_each("receive", [when.started_at - when.began_at for when in moments if when.began_at])
        self._stages.add_each("read", [when.read_at - when.started_at for when in moments])
        self._stages.add_each("prompt", [when.known_at - when.read_at for when in moments])
        self._stages.add_each("queue", [when.now - when.known_at for when in moments if when.now > when.known_at])
        self._stages.add_each("decide", [each.done_at - each.moment.now for each in found if each.done_at])

    def _count_hits(self, model: str, decision: Routed) -> None:
        if (forgone := best_hit_tokens(decision) - decision.hit_tokens) > 0:
            self._lost_hits.add((model,), forgone)
        loads = decision.terms.get("adapter")
        if loads is not None and loads.item(decision.slots[0]):
            self._adapter_loads.add((model,))

    def _count_over(self, found: Sequence[Decided]) -> None:
        self._stages.add_each("reply", [each.replied_at - each.done_at for each in found if each.replied_at])
        self._ended.add_each(map(_ended_as, found))
        by_model: defaultdict[str, list[Decided]] = defaultdict(list)
        for decided in found:
            by_model[decided.label].append(decided)
            if decided.chosen and decided.served not in ("", decided.chosen.endpoint):
                self._elsewhere.add((decided.chosen.worker,))
        for model, those in by_model.items():
            _count_times(self._first_byte, model, [(each, each.first_byte_at) for each in those])
            _count_times(self._duration, model, [(each, each.ended_at) for each in those])

    def _model(self, each: _New) -> str:
        name, roster = each.model, each.roster
        if roster is not self._roster:
            self._roster, self._names = roster, {}
        label = self._names.get(name)
        if label is None:
            label = name if not name or is_served(name, roster) else OTHER
            # Clients name what nobody serves, in any number.
            if len(self._names) < _MOST_NAMES:
                self._names[name] = label
        return label


def _taken(waiting: list[T]) -> list[T]:
    """All of a list to which another thread may be adding."""
    taken = waiting[:]
    del waiting[: len(taken)]
    return taken


def _asked(decided: Decided) -> tuple[str, str, str]:
    """Model, tenant and objective, as labels."""
    terms, known = decided.asked.terms, decided.known_names
    tenant = terms.tenant if terms.tenant in known else OTHER if terms.tenant else ""
    objective = terms.objective if terms.objective in known else OTHER if terms.objective else ""
    return decided.label, tenant, objective


def _ended_as(decided: Decided) -> tuple[str, str, str]:
    """How it ended, and on what kind of worker, as labels."""
    facts = decided.chosen
    return decided.end, facts.gpu if facts else OTHER, facts.version if facts else OTHER


def _count_times(histogram: HistogramTally, model: str, found: Iterable[tuple[Decided, float | None]]) -> None:
    """Since the decisions."""
    values = [(decided, at - decided.moment.now) for decided, at in found if at is not None]
    histogram.add_each(model, [seconds for _, seconds in values])
    for decided, seconds in values:
        if trace := decided.trace_id:
            histogram.exemplify(model, seconds, trace)
