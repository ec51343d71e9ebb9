"""Metrics in Prometheus' form. Those of the hot path are bound once; gauges are read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from picker.prompts.reader import Rung
from picker.telemetry.http_server import Answer, Asked, serve
from picker.telemetry.tallies import Counted, CounterTally, Counts, HistogramTally
from picker.transport.errors import Reason

# A `_created` series beside each counter doubles what is scraped and stored.
disable_created_metrics()  # type: ignore[no-untyped-call]

Readings = Mapping[str, tuple[str, float]]
"""Gauge name -> (help, value)."""

ModelReadings = Mapping[str, tuple[str, Mapping[str, float]]]
"""Gauge name -> (help, model or class -> value)."""

_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LAG_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_MOST_MODELS = 100
_ROUTED = ("route", "")


class Metrics:
    """All of one picker's counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._lines: list[Callable[[], Iterable[str]]] = []
        ProcessCollector(registry=self.registry)
        self._requests = self._tally("requests", "Requests by verdict and reason.", "verdict", "reason")
        self._prompt_tokens = self._tally("prompt_tokens", "Prompt tokens of routed requests.", "model")
        self._hit_tokens = self._tally("predicted_hit_tokens", "Of them, cached on the picked worker.", "model")
        self._rungs = self._tally("prefix_rung", "Routed requests by how their prefix was known.", "rung")
        self._ignored = self._counter("ignored_messages", "ext_proc messages that meant nothing.", "event", "state")
        self._responses = self._counter("responses", "Envoy's access log: responses by status class.", "class")
        misdeeds = self._counter("peer_misdeeds", "What peers of the http2 transport did that has a limit.", "reason")
        self._misdeeds = {reason: misdeeds.labels(reason.value) for reason in Reason}
        self.errors = self._counter("internal_errors", "Picks that failed by a defect of ours; Envoy chose.")
        self.preempted = self._counter("preempted", "Requests cut before their response began, for a higher class.")
        self.unknown_objectives = self._counter("unknown_objectives", "Requests whose objective names no class.")
        text = "How long requests waited that had to."
        self._waited = self._histogram("queue_wait_seconds", text, _WAIT_SECONDS, "class")
        self.retried = self._counter("retried_requests", "Requests that Envoy tried on more than one worker.")
        self.broken = self._counter("broken_responses", "Responses that ended in the middle, because their worker did.")
        self.not_honoured = self._counter("picks_not_honoured", "First attempts served by somebody else than picked.")
        text = "Time from a request's last byte to its verdict."
        self.pick_seconds = self._histogram("pick_seconds", text, _SECONDS)
        text = "How late the event loop came to what was due."
        self.loop_lag_seconds = self._histogram("event_loop_lag_seconds", text, _LAG_SECONDS)
        for rung in Rung:
            self._rungs.add((rung.value,), 0)
        classes = {0: "none"} | {first: f"{first}xx" for first in range(1, 6)}
        self._response_class = {first: self._responses.labels(name) for first, name in classes.items()}
        self._requests.add(_ROUTED, 0)
        usages = self._counter("usage", "Responses that passed through by what they told of tokens.", "result")
        self._usage_read, self.usage_missing, self.usage_unreadable = (
            usages.labels(result) for result in ("read", "missing", "unreadable")
        )
        self._told_cached = self._tally("told_cached_tokens", "Cached prompt tokens, as responses tell.", "model")
        self._told_predicted = self._tally("told_predicted_tokens", "Those predicted for these requests.", "model")

    def verdicts(self) -> dict[tuple[str, str], float]:
        """Requests since the start, by verdict and reason."""
        return {(verdict, reason): count for (verdict, reason), count in self._requests.items()}

    def routed(self, model: str, prompt_tokens: int, hit_tokens: int, rung: Rung) -> None:
        """A request was placed. Only models that workers serve get here."""
        self._requests.add(_ROUTED)
        self._rungs.add((rung.value,))
        self._prompt_tokens.add((model,), prompt_tokens)
        self._hit_tokens.add((model,), hit_tokens)

    def used(self, model: str, prompt_tokens: int, cached_tokens: int | None, predicted_tokens: int) -> None:
        """A response has told what it took."""
        self._usage_read.inc()
        if cached_tokens is not None:
            self._told_cached.add((model,), min(cached_tokens, prompt_tokens))
            self._told_predicted.add((model,), min(predicted_tokens, prompt_tokens))

    def passed(self, reason: str) -> None:
        """A request was left to Envoy's own choice."""
        self._requests.add(("pass", reason))

    def refused(self, reason: str) -> None:
        """A request was refused."""
        self._requests.add(("refuse", reason))

    def waited(self, name: str, seconds: float) -> None:
        """A request of this class has left the queue."""
        self._waited.add(name, seconds)

    def ignored(self, event: str, state: str) -> None:
        """A message meant nothing in its state."""
        self._ignored.labels(event, state).inc()

    def misbehaved(self, reason: Reason) -> None:
        """A peer of the http2 transport did what has a limit."""
        self._misdeeds[reason].inc()

    def response(self, status: int) -> None:
        """Envoy has logged a response."""
        self._response_class.get(status // 100, self._response_class[0]).inc()

    def add_gauges(self, read: Callable[[], Readings]) -> None:
        """Gauges whose values `read` gives at each scrape."""
        self.registry.register(_Gauges(read))

    def add_model_gauges(self, read: Callable[[], ModelReadings]) -> None:
        """Gauges for each model that workers serve, of which the first 100 in alphabetical order are shown."""
        self.registry.register(_LabelledGauges(read, "model"))

    def add_class_gauges(self, read: Callable[[], ModelReadings]) -> None:
        """Gauges for each class of requests."""
        self.registry.register(_LabelledGauges(read, "class"))

    def add_counts(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Counts]) -> None:
        """Counters that somebody else keeps, which `read` gives at each scrape, in its thread."""
        Counted(self.registry, f"picker_{name}", text, labels, read)

    def add_modes(self, read: Callable[[], Mapping[str, bool]]) -> None:
        """What does not work as it should, by name."""
        self.registry.register(_Modes(read))

    def add_lines(self, read: Callable[[], Iterable[str]]) -> None:
        """Metrics that are text already, with their own HELP and TYPE."""
        self._lines.append(read)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All metrics in the format that a scraper accepts, and its content type."""
        encode, content_type = choose_encoder(accept)
        body = encode(self.registry)
        more = "".join(line for read in self._lines for line in read()).encode()
        end = b"# EOF\n" if body.endswith(b"# EOF\n") else b""
        return body.removesuffix(end) + more + end, content_type

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Answers scrapes from threads of its own; returns what stops it. Raises OSError if the port is taken."""

        def answer(asked: Asked) -> Answer:
            return Answer(*self.exposition(asked.headers.get("accept", "")))

        return serve(host, port, answer)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"picker_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, bounds: Sequence[float], label: str = "") -> HistogramTally:
        return HistogramTally(self.registry, f"picker_{name}", text, label, bounds)

    def _tally(self, name: str, text: str, *labels: str) -> CounterTally:
        # A fleet with a thousand adapters is a thousand models.
        return CounterTally(self.registry, f"picker_{name}", text, labels, _MOST_MODELS)


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Readings]):
        self._read = read

    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in self._read().items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"picker_{name}", text, value)


class _Modes(Collector):
    def __init__(self, read: Callable[[], Mapping[str, bool]]):
        self._read = read

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily("picker_degraded", "1 while something does not work as it should.", labels=["mode"])
        for mode, is_so in self._read().items():
            family.add_metric([mode], float(is_so))
        yield family


class _LabelledGauges(Collector):
    def __init__(self, read: Callable[[], ModelReadings], label: str):
        self._read = read
        self._label = label

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, (text, values) in self._read().items():
            family = GaugeMetricFamily(f"picker_{name}", text, labels=[self._label])
            for value in sorted(values)[:_MOST_MODELS]:
                family.add_metric([value], values[value])
            yield family
