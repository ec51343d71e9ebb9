"""vLLM, 0.11 to 0.32.

Gauges move only with engine steps: a paused or sleeping engine shows 0 with requests hanging in it. Sleeping shows in a
metric; pausing only on a page that exists where pausing does, in development mode.
"""

from __future__ import annotations

import msgspec

from picker.agent.engines.kind import About, EngineKind, EventSource, Unknown, source_of
from picker.agent.metrics import (
    PROCESS_START,
    AdapterUse,
    Counters,
    Metrics,
    Sample,
    Unreadable,
    Which,
    over,
    read_samples,
    total,
    whole,
)

_CREATED = "vllm:generation_tokens_created"
_KV_USED = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_ADAPTERS = "vllm:lora_requests_info"
_WANTED = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    *_KV_USED,
    "vllm:engine_sleep_state",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_cached_total",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:iteration_tokens_total_count",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:time_to_first_token_seconds_count",
    "vllm:cache_config_info",
    _ADAPTERS,
    _CREATED,
    PROCESS_START,
)
# Of the process, or of all its engines.
_SHARED = (PROCESS_START, _ADAPTERS)


def read_metrics(page: bytes, which: Which) -> Metrics:
    """Raises Unreadable."""
    samples = [sample for sample in read_samples(page, _WANTED) if _is_of(sample, which)]
    if not any(sample.name not in _SHARED for sample in samples):
        raise Unreadable(f"the page has nothing of vLLM's for {which}")
    return Metrics(
        running=total(samples, "vllm:num_requests_running"),
        waiting=total(samples, "vllm:num_requests_waiting"),
        kv_used=over(max, samples, *_KV_USED),
        sleeps=any(sample.value == 0 for sample in samples if sample.labels.get("sleep_state") == "awake"),
        kv_capacity_tokens=sum(_capacity(s.labels) for s in samples if s.name == "vllm:cache_config_info"),
        ranks=frozenset(sample.labels["engine"] for sample in samples if "engine" in sample.labels),
        started_at=over(max, samples, _CREATED, PROCESS_START) or 0.0,
        counters=_counters(samples),
        adapters=_adapters(samples),
    )


def _is_of(sample: Sample, which: Which) -> bool:
    if sample.name in _SHARED:
        return True
    # The cache's size has no model's name.
    is_model = not which.model or sample.labels.get("model_name", which.model) == which.model
    return is_model and (which.rank is None or sample.labels.get("engine") == str(which.rank))


def _counters(samples: list[Sample]) -> Counters:
    prompt, cached = (total(samples, f"vllm:prompt_tokens{kind}_total") for kind in ("", "_cached"))
    success = "vllm:request_success_total"
    return Counters(
        # The two are not counted at the same moment: cached tokens at admission, prompt tokens at the end of prefill.
        prompt_tokens=max(0, prompt - cached),
        generation_tokens=total(samples, "vllm:generation_tokens_total"),
        successes=total(samples, success),
        steps=total(samples, "vllm:iteration_tokens_total_count"),
        looked_up_tokens=total(samples, "vllm:prefix_cache_queries_total"),
        reused_tokens=total(samples, "vllm:prefix_cache_hits_total"),
        first_tokens=total(samples, "vllm:time_to_first_token_seconds_count"),
        errors=total([sample for sample in samples if sample.labels.get("finished_reason") == "error"], success),
    )


def _adapters(samples: list[Sample]) -> AdapterUse:
    """The newest of the series, whose value is the time it was written: the old ones stay for ever."""
    infos = [sample for sample in samples if sample.name == _ADAPTERS]
    if not infos:
        return AdapterUse()
    labels = max(infos, key=lambda sample: sample.value).labels
    running, waiting = (_names(labels.get(f"{kind}_lora_adapters", "")) for kind in ("running", "waiting"))
    return AdapterUse(running, waiting, whole(labels.get("max_lora")))


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _capacity(labels: dict[str, str]) -> int:
    return whole(labels.get("kv_cache_size_tokens")) or whole(labels.get("num_gpu_blocks")) * whole(
        labels.get("block_size")
    )


# -- what it says of itself --------------------------------------------------------------------------------------------


class _Version(msgspec.Struct):
    version: str


class _Source(msgspec.Struct):
    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None


def read_about(path: str, page: bytes, rank: int | None, host: str) -> About:
    """Raises Unknown. Versions before 0.30 or so have no /kv_event_sources."""
    try:
        if path == "/version":
            return About(version=msgspec.json.decode(page, type=_Version).version)
        sources = msgspec.json.decode(page, type=dict[str, _Source])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unknown(path) from None
    return About(source=_source(sources, rank, host))


def _source(sources: dict[str, _Source], rank: int | None, host: str) -> EventSource | None:
    source = sources.get(str(rank)) if rank is not None else next(iter(sources.values()), None)
    if source is None or not source.enable_kv_cache_events or source.publisher != "zmq":
        return None
    return source_of(source.endpoint, source.replay_endpoint, host)


KIND = EngineKind(
    name="vllm",
    owner="vllm",
    prefix=b"vllm:",
    read_metrics=read_metrics,
    about_pages=("/version", "/kv_event_sources"),
    read_about=read_about,
    paused_page="/is_paused",
)
