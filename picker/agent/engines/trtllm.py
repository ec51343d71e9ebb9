"""TensorRT-LLM's server. Names as in its source of 2026; it was not run, since it needs a GPU.

Load is on /prometheus/metrics with `return_perf_metrics`, else on /metrics as JSON with `enable_iter_perf_stats`: one
entry for each iteration, handed out once, and waited for up to 2 s where there is none. KV events, with
`event_buffer_max_size` in the KV cache's configuration, are handed out once too: nobody else may ask for them.
"""

from __future__ import annotations

import msgspec

from picker.agent.engines.kind import About, EngineKind, EventSource, Unknown
from picker.agent.metrics import Counters, Metrics, Unreadable, Which, over, read_samples, total

EVENTS_PAGE = "/kv_cache_events"
_WANTED = (
    "trtllm_num_requests_running",
    "trtllm_num_requests_waiting",
    "trtllm_kv_cache_utilization",
    "trtllm_kv_cache_max_blocks",
    "trtllm_kv_cache_tokens_per_block",
    "trtllm_prompt_tokens_total",
    "trtllm_prompt_cached_tokens_total",
    "trtllm_generation_tokens_total",
    "trtllm_request_success_total",
    "trtllm_request_error_total",
    "trtllm_time_to_first_token_seconds_count",
    "trtllm_iteration_latency_seconds_count",
)


class _KvStats(msgspec.Struct, rename="camel"):
    max_num_blocks: int = 0
    used_num_blocks: int = 0
    tokens_per_block: int = 0


class _Batching(msgspec.Struct, rename="camel"):
    num_paused_requests: int = 0
    num_queued_ctx_tokens: int | None = None


class _Iteration(msgspec.Struct, rename="camel"):
    num_active_requests: int
    num_queued_requests: int = 0
    iter: int = 0
    kv_cache_stats: _KvStats | None = None
    inflight_batching_stats: _Batching | None = None


def read_metrics(page: bytes, which: Which) -> Metrics | None:
    """Of either page. None: no iteration since the last time. Raises Unreadable."""
    if not page.lstrip().startswith(b"["):
        return _of_prometheus(page, which)
    try:
        iterations = msgspec.json.decode(page, type=list[_Iteration])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unreadable("the page is neither a list of iterations nor in Prometheus' text format") from None
    return _of_iteration(iterations[-1]) if iterations else None


def _of_iteration(last: _Iteration) -> Metrics:
    kv, batching = last.kv_cache_stats, last.inflight_batching_stats or _Batching()
    return Metrics(
        running=last.num_active_requests,
        waiting=last.num_queued_requests + batching.num_paused_requests,
        kv_used=kv.used_num_blocks / kv.max_num_blocks if kv and kv.max_num_blocks else None,
        kv_capacity_tokens=kv.max_num_blocks * kv.tokens_per_block if kv else 0,
        counters=Counters(steps=last.iter),
        waiting_uncached_tokens=batching.num_queued_ctx_tokens,
    )


def _of_prometheus(page: bytes, which: Which) -> Metrics:
    samples = [
        sample
        for sample in read_samples(page, _WANTED)
        if not which.model or sample.labels.get("model_name", which.model) == which.model
    ]
    if not samples:
        raise Unreadable(f"the page has nothing of TensorRT-LLM's for {which}")
    prompt, cached = (total(samples, f"trtllm_prompt_{kind}tokens_total") for kind in ("", "cached_"))
    blocks, block_tokens = (
        over(max, samples, f"trtllm_kv_cache_{name}") or 0 for name in ("max_blocks", "tokens_per_block")
    )
    return Metrics(
        running=total(samples, "trtllm_num_requests_running"),
        waiting=total(samples, "trtllm_num_requests_waiting"),
        kv_used=over(max, samples, "trtllm_kv_cache_utilization"),
        kv_capacity_tokens=int(blocks * block_tokens),
        counters=Counters(
            prompt_tokens=max(0, prompt - cached),
            generation_tokens=total(samples, "trtllm_generation_tokens_total"),
            successes=total(samples, "trtllm_request_success_total"),
            steps=total(samples, "trtllm_iteration_latency_seconds_count"),
            looked_up_tokens=prompt,
            reused_tokens=cached,
            first_tokens=total(samples, "trtllm_time_to_first_token_seconds_count"),
            errors=total(samples, "trtllm_request_error_total"),
        ),
    )


class _Version(msgspec.Struct):
    version: str


def read_about(path: str, page: bytes, rank: int | None, host: str) -> About:
    """Raises Unknown. Whether there are KV events shows only when they are asked for."""
    try:
        version = msgspec.json.decode(page, type=_Version).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unknown(path) from None
    return About(version, EventSource(EVENTS_PAGE, is_polled=True))


KIND = EngineKind(
    name="trtllm",
    owner="tensorrt_llm",
    prefix=b"trtllm_",
    read_metrics=read_metrics,
    metrics_pages=("/prometheus/metrics", "/metrics"),
    metrics_timeout_s=4.0,
    about_pages=("/version",),
    read_about=read_about,
)
