"""Decisions as metrics: who asked for what, where it went, where the time went, and how it ended.

Label values are names that we know (served models, tenants and objectives of the configuration) and `other`.
"""

from __future__ import annotations

from collections import Counter as Counts

from prometheus_client import CollectorRegistry, Counter, Histogram

from picker.events.decided import Decided, is_served
from picker.events.recorder import Recorder
from picker.scheduling.decision import Routed
from picker.telemetry.labels import OTHER, Children

_STAGE_SECONDS = (0.00001, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_MOST = 1000
_MOST_MODELS = 100
_MOST_NAMES = 2000
_STAGES = ("read", "prompt", "queue", "decide")


class DecisionMetrics:
    """Listens to a recorder. `running` are the requests that are placed and not ended, by model."""

    def __init__(self, registry: CollectorRegistry, recorder: Recorder, most_workers: int = _MOST):
        self.running: Counts[str] = Counts()
        self._names: dict[str, str] = {}
        self._roster: object = None

        def counter(name: str, text: str, *labels: str, most: int = _MOST) -> Children[Counter]:
            metric = Counter(f"picker_{name}", text, labels, registry=registry)
            return Children(metric.labels, len(labels), most)

        def histogram(name: str, text: str, label: str, buckets: tuple[float, ...]) -> Children[Histogram]:
            metric = Histogram(f"picker_{name}", text, (label,), registry=registry, buckets=buckets)
            return Children(metric.labels, 1, _MOST_MODELS)

        who = ("model", "tenant", "objective")
        text = "Requests that were placed, by who asked for what."
        self._routed_metric = Counter("picker_routed_requests", text, who, registry=registry)
        self._routed = Children(self._routed_metric.labels, len(who), _MOST)
        self._refused = counter("refused_requests", "Requests that were refused, likewise.", *who, "reason")
        self._ended = counter("ended_requests", "Placed requests by how they ended.", "end", "gpu", "version")
        self._picks = counter("worker_picks", "Requests placed on a worker.", "worker", most=most_workers)
        self._elsewhere = counter(
            "worker_picks_not_honoured", "Requests placed on a worker that another one served.", "worker",
            most=most_workers,
        )  # fmt: skip
        self._adapter_loads = counter("adapter_loads", "Requests placed where their adapter was not loaded.", "model")
        self._lost_hits = counter(
            "hit_tokens_forgone", "Prompt tokens cached on another eligible worker and not on the chosen one.", "model"
        )
        self._stages = histogram("stage_seconds", "Time of a decision by stage.", "stage", _STAGE_SECONDS)
        self._first_byte = histogram(
            "first_byte_seconds", "Time from a decision to the head of the response.", "model", _SECONDS
        )
        self._duration = histogram(
            "request_seconds", "Time from a decision to the end of its request.", "model", _SECONDS
        )
        recorder.on_decided.append(self._decided)
        recorder.on_ended.append(self._end)

    def routed(self) -> dict[str, float]:
        """Requests that were placed, by model."""
        found: dict[str, float] = {}
        for sample in next(iter(self._routed_metric.collect())).samples:
            found[sample.labels["model"]] = found.get(sample.labels["model"], 0.0) + sample.value
        return found

    def _decided(self, decided: Decided) -> None:
        model, tenant, objective = self._asked(decided)
        decision = decided.decision
        for stage in _STAGES:
            if seconds := getattr(decided.stages, f"{stage}_s"):
                self._stages(stage).observe(seconds)
        if decided.verdict == "refuse":
            self._refused(model, tenant, objective, decided.reason).inc()
        elif decision is not None:
            self.running[model] += 1
            self._routed(model, tenant, objective).inc()
            self._picks(decided.chosen.worker if decided.chosen else OTHER).inc()
            self._hits(model, decision)

    def _hits(self, model: str, decision: Routed) -> None:
        if forgone := int(decision.hits.max(where=decision.eligible, initial=0)) - decision.hit_tokens:
            self._lost_hits(model).inc(forgone)
        loads = decision.terms.get("adapter")
        if loads is not None and loads[decision.slots[0]]:
            self._adapter_loads(model).inc()

    def _end(self, decided: Decided) -> None:
        outcome, facts = decided.outcome, decided.chosen
        if decided.verdict != "route":
            return
        model = self._model(decided)
        self.running[model] -= 1
        self._ended(outcome.end, facts.gpu if facts else OTHER, facts.version if facts else OTHER).inc()
        exemplar = {"trace_id": trace} if (trace := decided.trace_id) else None
        if outcome.first_byte_s is not None:
            self._first_byte(model).observe(outcome.first_byte_s, exemplar)
        if outcome.duration_s is not None:
            self._duration(model).observe(outcome.duration_s, exemplar)
        if facts and outcome.served not in ("", facts.endpoint):
            self._elsewhere(facts.worker).inc()

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
