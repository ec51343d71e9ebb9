"""The names under which dashboards and autoscalers of the Gateway API's reference picker look for what we know too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from picker.telemetry.decisions import DecisionMetrics
from picker.telemetry.metrics import Metrics
from picker.telemetry.workers import GAUGES, Workers

_COLUMN = {name: number for number, name in enumerate(GAUGES)}
_POOL_GAUGES = {
    # What it is an average of.    Its names, without what stands in front.
    "worker_kv_used": "average_kv_cache_utilization",
    "worker_waiting_requests": "average_queue_size",
    "worker_running_requests": "average_running_requests",
}
_RUNNING = {
    "llm_d_epp_": "llm_d_epp_request_running",
    "inference_objective_": "inference_objective_running_requests",
}
_PREFIXES = ("llm_d_epp_", "inference_pool_")


class Compatible(Collector):
    """`llm_d_epp_...`, `inference_pool_...`, `inference_objective_...`, worked out at each scrape."""

    def __init__(self, pool: str, workers: Callable[[], Workers], decisions: DecisionMetrics, metrics: Metrics):
        self._pool = pool
        self._workers = workers
        self._decisions = decisions
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Of prometheus_client."""
        yield from self._of_the_pool()
        yield from self._of_requests()
        yield self._seconds()

    def _of_the_pool(self) -> Iterator[Metric]:
        workers = self._workers()
        ready = workers.columns[_COLUMN["worker_ready"]]
        for prefix in _PREFIXES:
            for name, alias in _POOL_GAUGES.items():
                column = workers.columns[_COLUMN[name]]
                yield self._gauge(f"{prefix}{alias}", sum(column) / max(1, len(column)))
        yield self._gauge("llm_d_epp_ready_endpoints", sum(ready))
        yield self._gauge("inference_pool_ready_pods", sum(ready))
        waiting = workers.columns[_COLUMN["worker_waiting_requests"]]
        for name, label in (
            ("llm_d_epp_per_endpoint_queue_size", "model_server_endpoint"),
            ("inference_pool_per_pod_queue_size", "model_server_pod"),
        ):
            family = GaugeMetricFamily(name, "Requests in a worker's own queue.", labels=["name", label])
            for facts, value in zip(workers.facts, waiting, strict=True):
                family.add_metric([self._pool, facts.worker], value)
            yield family

    def _of_requests(self) -> Iterator[Metric]:
        names = ["model_name", "target_model_name"]
        for prefix in _RUNNING:
            total = CounterMetricFamily(f"{prefix}request", "Requests placed.", labels=names)
            for model, value in self._decisions.routed().items():
                total.add_metric([model, model], value)
            yield total
            running = GaugeMetricFamily(
                f"{prefix}request_running", "Requests placed and not ended.", labels=["model_name"]
            )
            if prefix == "inference_objective_":
                running.name = "inference_objective_running_requests"
            for model, count in dict(self._decisions.running).items():
                running.add_metric([model], count)
            yield running
            errors = CounterMetricFamily(f"{prefix}request_error", "Requests refused.", labels=["error_code"])
            for (verdict, reason), value in self._metrics.verdicts().items():
                if verdict == "refuse":
                    errors.add_metric([reason], value)
            yield errors

    def _seconds(self) -> Metric:
        [metric] = self._metrics.pick_seconds.collect()
        samples = metric.samples
        buckets = [(s.labels["le"], s.value) for s in samples if s.name.endswith("_bucket")]
        total = next(s.value for s in samples if s.name.endswith("_sum"))
        family = HistogramMetricFamily("llm_d_epp_scheduler_e2e_duration_seconds", "Time of a pick.")
        family.add_metric([], buckets, total)
        return family

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, "As of the workers' last reports.", labels=["name"])
        family.add_metric([self._pool], value)
        return family
