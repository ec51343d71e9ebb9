"""Decisions as metrics: who asked for what, where it went, where the time went, and how it ended.

Label values are names that we know (served models, tenants and objectives of the configuration) and `other`.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Container, Sequence

from prometheus_client import CollectorRegistry

from picker.events.decided import Decided, is_served
from picker.events.recorder import Recorder
from picker.scheduling.decision import Routed
from picker.telemetry.labels import OTHER
from picker.telemetry.tallies import CounterTally, HistogramTally

_STAGE_SECONDS = (0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_MOST = 1000
_MOST_MODELS = 100
_MOST_NAMES = 2000


class DecisionMetrics:
    """Listens to a recorder. `running` are the requests that are placed and not ended, by model."""

    def __init__(self, registry: CollectorRegistry, recorder: Recorder, most_workers: int = _MOST):
        self.running: Counts[str] = Counts()
        self._names: dict[str, str] = {}
        self._roster: object = None

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

    def keep(self, workers: Container[str]) -> None:
        """These are the workers that there are: what was counted of others goes when there is no more room."""
        for counter in (self._picks, self._elsewhere):
            counter.keep(workers)

    def routed(self) -> dict[str, float]:
        """Requests that were placed, by model."""
        found: Counts[str] = Counts()
        for (model, _, _), count in self._routed.items():
            found[model] += int(count)
        return dict(found)

    def _decided(self, decided: Decided) -> None:
        asked = self._asked(decided)
        decision, stages = decided.decision, decided.stages
        self._stages.add("read", stages.read_s)
        self._stages.add("prompt", stages.prompt_s)
        if stages.queue_s:
            self._stages.add("queue", stages.queue_s)
        if decided.verdict == "refuse":
            self._refused.add((*asked, decided.reason))
        elif decision is not None:
            self._stages.add("decide", stages.decide_s)
            self.running[asked[0]] += 1
            self._routed.add(asked)
            self._picks.add((decided.chosen.worker if decided.chosen else OTHER,))
            self._hits(asked[0], decided, decision)

    def _hits(self, model: str, decided: Decided, decision: Routed) -> None:
        if decided.about and decided.about.chain and decision.hits.max() > decision.hit_tokens:
            forgone = int(decision.hits[decision.eligible].max()) - decision.hit_tokens
            if forgone > 0:
                self._lost_hits.add((model,), forgone)
        loads = decision.terms.get("adapter")
        if loads is not None and loads[decision.slots[0]]:
            self._adapter_loads.add((model,))

    def _end(self, decided: Decided) -> None:
        facts = decided.chosen
        if decided.verdict != "route":
            return
        model, outcome = self._model(decided), decided.outcome
        self.running[model] -= 1
        self._ended.add((outcome.end, facts.gpu if facts else OTHER, facts.version if facts else OTHER))
        trace = decided.trace_id
        if outcome.first_byte_s is not None:
            self._first_byte.add(model, outcome.first_byte_s, trace)
        if outcome.duration_s is not None:
            self._duration.add(model, outcome.duration_s, trace)
        if facts and outcome.served not in ("", facts.endpoint):
            self._elsewhere.add((facts.worker,))

    def _asked(self, decided: Decided) -> tuple[str, str, str]:
        """Model, tenant and objective, as labels."""
        terms, known = decided.asked.terms, decided.known_names
        tenant = terms.tenant if terms.tenant in known else OTHER if terms.tenant else ""
        objective = terms.objective if terms.objective in known else OTHER if terms.objective else ""
        return self._model(decided), tenant, objective

    def _model(self, decided: Decided) -> str:
        if decided.model_label is None:
            decided.model_label = self._model_of(decided)
        return decided.model_label

    def _model_of(self, decided: Decided) -> str:
        name = (decided.about.model if decided.about else "") or ""
        if decided.roster is not self._roster:
            self._roster, self._names = decided.roster, {}
        label = self._names.get(name)
        if label is None:
            label = name if not name or is_served(name, decided.roster) else OTHER
            # Clients name what nobody serves, in any number.
            if len(self._names) < _MOST_NAMES:
                self._names[name] = label
        return label
