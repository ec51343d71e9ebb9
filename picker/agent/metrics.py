"""vLLM's /metrics page: the few numbers that a picker needs, and what follows from two of them. Pure.

Gauges move only with engine steps (vLLM 0.32): a paused or sleeping engine shows 0 with requests hanging in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

_CREATED = "vllm:generation_tokens_created"
_PROCESS_START = "process_start_time_seconds"
# Parsing all of vLLM's 74 kB takes ten times as long as parsing these lines.
_WANTED = (
    "vllm:num_requests_running{",
    "vllm:num_requests_waiting{",
    "vllm:kv_cache_usage_perc{",
    "vllm:engine_sleep_state{",
    "vllm:prompt_tokens_total{",
    "vllm:prompt_tokens_cached_total{",
    "vllm:generation_tokens_total{",
    "vllm:request_success_total{",
    "vllm:iteration_tokens_total_count{",
    "vllm:prefix_cache_queries_total{",
    "vllm:prefix_cache_hits_total{",
    "vllm:cache_config_info{",
    _CREATED,
    _PROCESS_START,
)


class Unreadable(ValueError):
    """A page that is not what vLLM writes."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has done since it started.

    `prompt_tokens` excludes what came from its cache. `steps` is 0 where the engine does not count them. Of the
    tokens looked up in its prefix cache `reused_tokens` were found; both count a request when it is admitted.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    successes: int = 0
    steps: int = 0
    looked_up_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    """One look at an engine.

    `kv_used`: share of KV blocks that running requests hold, 0 to 1. `sleeps`: no request is served. `ranks`: the
    engine labels on the page. `started_at`: the engine's own time, to compare with an earlier one; 0: unknown.
    """

    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    sleeps: bool = False
    kv_capacity_tokens: int = 0
    ranks: frozenset[str] = frozenset()
    started_at: float = 0.0
    counters: Counters = field(default_factory=Counters)

    @property
    def waiting_tokens(self) -> int:
        """An estimate of the prompt tokens to compute for the queue: as many for each as the average request had.

        vLLM 0.32 counts waiting requests, not their tokens.
        """
        done = self.counters.successes
        return self.waiting * self.counters.prompt_tokens // done if done else 0


@dataclass(frozen=True, slots=True)
class _Sample:
    name: str
    labels: dict[str, str]
    value: float


def parse(page: str, rank: int | None = None) -> Metrics:
    """The numbers of one data-parallel rank, or of all together. Raises Unreadable."""
    try:
        samples = [sample for sample in _samples(page) if rank is None or _is_of(sample, str(rank))]
    except ValueError as error:
        raise Unreadable(f"/metrics is not in Prometheus' text format: {type(error).__name__}") from None
    if not samples:
        raise Unreadable(f"/metrics has nothing of vLLM's{'' if rank is None else f' for rank {rank}'}")
    return Metrics(
        running=int(_over(sum, samples, "vllm:num_requests_running")),
        waiting=int(_over(sum, samples, "vllm:num_requests_waiting")),
        kv_used=_over(max, samples, "vllm:kv_cache_usage_perc"),
        sleeps=any(sample.value == 0 for sample in samples if sample.labels.get("sleep_state") == "awake"),
        kv_capacity_tokens=sum(_capacity(s.labels) for s in samples if s.name == "vllm:cache_config_info"),
        ranks=frozenset(sample.labels["engine"] for sample in samples if "engine" in sample.labels),
        started_at=_over(max, samples, _CREATED) or _over(max, samples, _PROCESS_START),
        counters=_counters(samples),
    )


def rates(before: Counters, after: Counters, elapsed_s: float) -> tuple[float, float]:
    """Prompt tokens computed and tokens generated per second. Zeros for an engine that started in between."""
    if elapsed_s <= 0 or has_gone_back(before, after):
        return 0.0, 0.0
    prefill = after.prompt_tokens - before.prompt_tokens
    decode = after.generation_tokens - before.generation_tokens
    # Prompt tokens net of cached ones may shrink for a moment: see _counters.
    return max(0, prefill) / elapsed_s, decode / elapsed_s


def has_restarted(before: Metrics, after: Metrics) -> bool:
    """Whether the second look was at another process."""
    return before.started_at != after.started_at or has_gone_back(before.counters, after.counters)


def has_gone_back(before: Counters, after: Counters) -> bool:
    """Whether a counter shrank."""
    return (
        after.generation_tokens < before.generation_tokens
        or after.successes < before.successes
        or after.steps < before.steps
    )


def _counters(samples: list[_Sample]) -> Counters:
    prompt = _over(sum, samples, "vllm:prompt_tokens_total")
    cached = _over(sum, samples, "vllm:prompt_tokens_cached_total")
    return Counters(
        # The two are not counted at the same moment: cached tokens at admission, prompt tokens at the end of prefill.
        prompt_tokens=max(0, int(prompt - cached)),
        generation_tokens=int(_over(sum, samples, "vllm:generation_tokens_total")),
        successes=int(_over(sum, samples, "vllm:request_success_total")),
        steps=int(_over(sum, samples, "vllm:iteration_tokens_total_count")),
        looked_up_tokens=int(_over(sum, samples, "vllm:prefix_cache_queries_total")),
        reused_tokens=int(_over(sum, samples, "vllm:prefix_cache_hits_total")),
    )


def _samples(page: str) -> Iterator[_Sample]:
    """Raises ValueError, also for a number that is none."""
    wanted = "\n".join(line for line in page.splitlines() if line.startswith(_WANTED))
    for family in text_string_to_metric_families(wanted + "\n"):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                raise ValueError("not a finite number")
            yield _Sample(sample.name, sample.labels, sample.value)


def _is_of(sample: _Sample, rank: str) -> bool:
    return sample.name == _PROCESS_START or sample.labels.get("engine") == rank


def _over(combine: Callable[[Iterable[float]], float], samples: list[_Sample], name: str) -> float:
    values = [sample.value for sample in samples if sample.name == name]
    return combine(values) if values else 0.0


_MOST_DIGITS = 9


def _capacity(labels: dict[str, str]) -> int:
    size = _int(labels.get("kv_cache_size_tokens"))
    return size or _int(labels.get("num_gpu_blocks")) * _int(labels.get("block_size"))


def _int(text: str | None) -> int:
    """0 where it is no number, or one that no engine can mean and no record can hold."""
    return int(text) if text and len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else 0
