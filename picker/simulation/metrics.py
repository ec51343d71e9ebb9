"""The part of vLLM 0.32's /metrics page that pickers and agents read, under its names and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from picker.simulation.engine import Engine, Gauges, StepResult

CONTENT_TYPE = CONTENT_TYPE_LATEST
# fmt: off
_TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
# fmt: on
_Metric = TypeVar("_Metric", Counter, Gauge)
_LABELS = ("model_name", "engine")
_FINISHED = ("stop", "length", "abort", "error", "repetition")


class WorkerMetrics:
    """One worker's registry. As in vLLM, every series is there from the start and gauges move only with steps."""

    def __init__(self, model: str, engine: Engine, max_model_len: int, adapters: Sequence[str]):
        self.registry = CollectorRegistry()
        self._labels = (model, "0")
        self._max_lora = str(len(adapters))
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        reasons = self._family(
            Gauge, "num_requests_waiting_by_reason", "Number of waiting requests by reason.", "reason"
        )
        self._waiting_for_capacity = reasons.labels(*self._labels, "capacity")
        reasons.labels(*self._labels, "deferred")
        self._kv_used = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        self._queries = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._hits = self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        self._prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        self._generated = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        success = self._family(
            Counter, "request_success", "Count of successfully processed requests.", "finished_reason"
        )
        self._success = {reason: success.labels(*self._labels, reason) for reason in _FINISHED}
        ttft = "Histogram of time to first token in seconds."
        self._first_token = Histogram(
            "vllm:time_to_first_token_seconds", ttft, _LABELS, buckets=_TTFT_BUCKETS, registry=self.registry
        ).labels(*self._labels)
        self._adapters = self._adapter_info() if adapters else None
        self._rejections = self._admission_rejections(model)
        self._sleep_state()
        self._cache_config(engine, max_model_len)

    def stepped(self, result: StepResult, gauges: Gauges) -> None:
        """A step ended."""
        self.moved(gauges)
        self._queries.inc(sum(each.prompt_tokens for each in result.admitted))
        self._hits.inc(sum(each.cached_tokens for each in result.admitted))
        self._prompt_tokens.inc(result.prefilled_tokens)
        self._generated.inc(len(result.produced))
        self._preemptions.inc(result.preempted)
        self._success["length"].inc(sum(each.finished for each in result.produced))

    def moved(self, gauges: Gauges) -> None:
        """The gauges changed."""
        self._running.set(gauges.running)
        self._waiting.set(gauges.waiting)
        self._waiting_for_capacity.set(gauges.waiting)
        self._kv_used.set(gauges.kv_used)
        if self._adapters:
            # vLLM lists the same adapters as running and as waiting, whatever they do.
            listed = ",".join(gauges.adapters)
            self._adapters.labels(self._max_lora, listed, listed).set_to_current_time()

    def first_token(self, seconds: float) -> None:
        """A request got its first token, so long after it came."""
        self._first_token.observe(seconds)

    def rejected(self) -> None:
        """A request was turned away because too many were queued."""
        self._rejections.inc()

    def page(self) -> bytes:
        """The text of /metrics."""
        return generate_latest(self.registry)

    def _family(self, kind: type[_Metric], name: str, text: str, *more_labels: str) -> _Metric:
        return kind(f"vllm:{name}", text, (*_LABELS, *more_labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return self._family(Gauge, name, text).labels(*self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return self._family(Counter, name, text).labels(*self._labels)

    def _adapter_info(self) -> Gauge:
        labels = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        return Gauge("vllm:lora_requests_info", "Running stats on lora requests.", labels, registry=self.registry)

    def _admission_rejections(self, model: str) -> Counter:
        text = "Number of admission attempts rejected by a queue limit, by reason."
        family = Counter("vllm:admission_rejections", text, ("model_name", "reason"), registry=self.registry)
        family.labels(model, "max_num_queued_tokens")
        return family.labels(model, "max_num_queued_reqs")

    def _sleep_state(self) -> None:
        states = self._family(Gauge, "engine_sleep_state", "Engine sleep state.", "sleep_state")
        for state in ("awake", "weights_offloaded", "discard_all"):
            states.labels(*self._labels, state).set(state == "awake")

    def _cache_config(self, engine: Engine, max_model_len: int) -> None:
        tokens = engine.block_tokens * engine.num_blocks
        labels = {
            "block_size": engine.block_tokens,
            "num_gpu_blocks": engine.num_blocks,
            "kv_cache_size_tokens": tokens,
            "kv_cache_max_concurrency": tokens / max_model_len,
            "enable_prefix_caching": True,
            "prefix_caching_hash_algo": "sha256",
            "engine": "0",
        }
        text = "Information of the LLMEngine CacheConfig"
        Gauge("vllm:cache_config_info", text, tuple(labels), registry=self.registry).labels(**labels).set(1)
