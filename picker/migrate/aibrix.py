"""AIBrix's gateway plugin: its environment, which holds most of its settings, and its few flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from picker.migrate.flags import Table, apply, ignored, says, sets
from picker.migrate.imported import Imported

_POLICIES: Mapping[str, tuple[str, str]] = {
    "random": ("random", ""),
    "least-request": ("least-request", ""),
    "power-of-two": ("power-of-two", ""),
    "throughput": ("least-tokens", "counts tokens in flight"),
    "least-kv-cache": ("expected-delay", "counts what a prompt would displace"),
    "least-gpu-cache": ("expected-delay", "counts what a prompt would displace"),
    "least-utilization": ("expected-delay", ""),
    "least-busy-time": ("expected-delay", ""),
    "least-latency": ("expected-delay", ""),
    "load-balance": ("expected-delay", ""),
    "prefix-cache": ("expected-delay", "weighs cached prefixes against load in seconds; their rule is policy aibrix"),
    "prefix-cache-preble": ("preble", ""),
    "session-affinity": ("session-hash", "see docs/policies.md for what is a session"),
    "vtc-basic": ("expected-delay", "fairness among tenants is admission's: docs/admission.md"),
    "pd": ("expected-delay", "disaggregated prefill is not known"),
    "slo": ("expected-delay", "see docs/admission.md for deadlines"),
}
_KV = "agents hear the KV events, and the picker tokenises by itself: `tokenizers`"
_CACHE = "belongs to their policy; expected-delay has no thresholds"

_ENVIRONMENT: Mapping[str, str] = {
    "AIBRIX_PREFIX_CACHE_USE_REMOTE_TOKENIZER": _KV,
    "AIBRIX_PREFIX_CACHE_TOKENIZER_TYPE": _KV,
    "AIBRIX_PREFIX_CACHE_REMOTE_TOKENIZER_ENDPOINT": _KV,
    "AIBRIX_PREFIX_CACHE_KV_EVENT_SYNC_ENABLED": _KV,
    "AIBRIX_PREFIX_CACHE_BLOCK_SIZE": _CACHE,
    "AIBRIX_PREFIX_CACHE_BLOCK_NUMBER": _CACHE,
    "AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT": _CACHE,
    "AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR": _CACHE,
    "AIBRIX_POD_METRIC_REFRESH_INTERVAL_MS": "agents ask the workers: probe_interval_s",
    "AIBRIX_AUTH_BEARER_TOKEN": "clients are checked in Envoy",
}

TABLE: Table = {
    "grpc-bind-address": sets("listen", lambda value: f"0.0.0.0:{int(value.rpartition(':')[2])}"),
    "metrics-bind-address": sets("metrics", lambda value: f"0.0.0.0:{int(value.rpartition(':')[2])}"),
    "standalone": ignored,
    "endpoints-config": says("agents tell of workers: run one beside each"),
    "v": ignored,
}


def read(words: Sequence[str], environment: Mapping[str, str]) -> Imported:
    """Ours from theirs."""
    imported = Imported("AIBrix's gateway plugin")
    apply(TABLE, words, imported)
    _redis(imported, environment)
    for name, value in environment.items():
        if name == "ROUTING_ALGORITHM":
            _policy(imported, value)
        elif name == "AIBRIX_GRPC_MAX_MESSAGE_SIZE_BYTES":
            imported.note(name, "Envoy's per_connection_buffer_limit_bytes, and limits.max_body_bytes here")
        elif not name.startswith("REDIS_"):
            imported.note(name, _ENVIRONMENT.get(name, "not known here, left out"))
    imported.note("header routing-strategy", "clients do not choose the policy; profiles do, by model, tenant or size")
    imported.note("header target-pod", "the destination is x-gateway-destination-endpoint: use `picker envoy`")
    return imported


def _policy(imported: Imported, value: str) -> None:
    ours, note = _POLICIES.get(
        value.partition(":")[0], ("", "has no counterpart; the default, expected-delay, is used")
    )
    if ours:
        imported.set("policy", ours)
    if note:
        imported.note(f"ROUTING_ALGORITHM={value}", f"{ours}: {note}" if ours else note)


def _redis(imported: Imported, environment: Mapping[str, str]) -> None:
    host, port = environment.get("REDIS_HOST"), environment.get("REDIS_PORT", "6379")
    if host:
        imported.set("redis", f"redis://{host}:{port}")
    if environment.get("REDIS_PASSWORD"):
        imported.note("REDIS_PASSWORD", "not copied: write it into the URL, redis://:PASSWORD@HOST, in a secret file")
