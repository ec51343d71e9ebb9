"""SGLang 0.5. Names as in the source of 0.5.23; it was not run, since it needs a GPU.

/health waits a second by design and generates a token on an idle engine: it is asked for rarely. Metrics need
--enable-metrics, load reports --load-publish-endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from picker.agent.engines.kind import About, EngineKind, Unknown, reachable, source_of
from picker.agent.metrics import Counters, Metrics, Sample, Unreadable, Which, over, read_samples, total

_WANTED = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:token_usage",
    "sglang:max_total_num_tokens",
    "sglang:prompt_tokens_total",
    "sglang:cached_tokens_total",
    "sglang:generation_tokens_total",
    "sglang:num_requests_total",
    "sglang:num_aborted_requests_total",
    "sglang:time_to_first_token_seconds_count",
)


def read_metrics(page: bytes, which: Which) -> Metrics:
    """Raises Unreadable."""
    samples = _once(sample for sample in read_samples(page, _WANTED) if _is_of(sample, which))
    if not samples:
        raise Unreadable(f"the page has nothing of SGLang's for {which}")
    prompt, cached = total(samples, "sglang:prompt_tokens_total"), total(samples, "sglang:cached_tokens_total")
    return Metrics(
        running=total(samples, "sglang:num_running_reqs"),
        waiting=total(samples, "sglang:num_queue_reqs"),
        kv_used=over(max, samples, "sglang:token_usage"),
        kv_capacity_tokens=total(samples, "sglang:max_total_num_tokens"),
        ranks=frozenset(sample.labels["dp_rank"] for sample in samples if "dp_rank" in sample.labels),
        counters=Counters(
            prompt_tokens=max(0, prompt - cached),
            generation_tokens=total(samples, "sglang:generation_tokens_total"),
            successes=total(samples, "sglang:num_requests_total"),
            looked_up_tokens=prompt,
            reused_tokens=cached,
            first_tokens=total(samples, "sglang:time_to_first_token_seconds_count"),
            errors=total(samples, "sglang:num_aborted_requests_total"),
        ),
    )


def _is_of(sample: Sample, which: Which) -> bool:
    if which.model and sample.labels.get("model_name", which.model) != which.model:
        return False
    # Totals stand under an empty priority, beside a series for each one.
    if sample.labels.get("priority"):
        return False
    # Gauges are of a rank; counters are of the server, all ranks together, and have no rank.
    return which.rank is None or sample.labels.get("dp_rank", str(which.rank)) == str(which.rank)


_OF_ONE_ENGINE = ("tp_rank", "pp_rank", "moe_ep_rank")


def _once(samples: Iterable[Sample]) -> list[Sample]:
    """Each number once: with metrics of all schedulers on, every tensor-parallel part of an engine repeats them."""
    first: dict[object, Sample] = {}
    for sample in samples:
        labels = frozenset(item for item in sample.labels.items() if item[0] not in _OF_ONE_ENGINE)
        first.setdefault((sample.name, labels), sample)
    return list(first.values())


# -- what it says of itself --------------------------------------------------------------------------------------------


class _Events(msgspec.Struct):
    endpoint_host: str
    endpoint_port_base: int
    publisher: str = "zmq"
    dp_size: int = 1
    load_endpoint_port_base: int | None = None
    replay_endpoint_port_base: int | None = None


class _ServerInfo(msgspec.Struct):
    version: str = ""
    max_total_num_tokens: int = 0
    kv_events: _Events | None = None


def read_about(path: str, page: bytes, rank: int | None, host: str) -> About:
    """Raises Unknown."""
    try:
        info = msgspec.json.decode(page, type=_ServerInfo)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Unknown(path) from None
    capacity = max(0, info.max_total_num_tokens)
    events = info.kv_events
    if events is None or events.publisher != "zmq":
        return About(info.version, kv_capacity_tokens=capacity)
    bases = events.endpoint_port_base, events.replay_endpoint_port_base, events.load_endpoint_port_base
    stored, replay, loads = (f"tcp://{events.endpoint_host}:{base + (rank or 0)}" if base else None for base in bases)
    source = source_of(stored, replay, host) if stored else None
    return About(info.version, source, reachable(loads, host) if loads else None, capacity)


KIND = EngineKind(
    name="sglang",
    owner="sglang",
    prefix=b"sglang:",
    read_metrics=read_metrics,
    about_pages=("/server_info", "/get_server_info"),
    read_about=read_about,
    health_every_s=10.0,
    health_timeout_s=5.0,
)
