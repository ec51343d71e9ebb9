"""The command lines of routers that are proxies themselves: SGLang's and vLLM's in Rust, vLLM's production stack."""

from __future__ import annotations

from collections.abc import Mapping

from picker.migrate.flags import Flag, Table, ignored, port, says, sets
from picker.migrate.imported import Imported

_ENVOYS = "Envoy's business: see the file of `picker envoy`"
_NOT_KNOWN = "has no counterpart; left out"
_PROXY = "the address of the proxy; here Envoy's listener: `picker envoy --listen`"
_DISCOVERY = "agents tell of workers: run one beside each"

_POLICIES: Mapping[str, tuple[str, str]] = {
    # Theirs.           Ours, and what to know of it.
    "random": ("random", ""),
    "round_robin": ("round-robin", ""),
    "roundrobin": ("round-robin", ""),
    "power_of_two": ("power-of-two", ""),
    "least_load": ("least-request", ""),
    "least-loaded": ("least-request", ""),
    "llq": ("least-request", ""),
    "cache_aware": ("expected-delay", "weighs cached prefixes against load in seconds; their rule is policy sglang"),
    "kv_aware": ("expected-delay", "hears the KV events through agents"),
    "kvaware": ("expected-delay", "hears the KV events through agents, not through a cache server"),
    "prefixaware": ("expected-delay", "matches prefixes, and heeds load as well"),
    "prefix_hash": ("bounded-load-hash", "places a prefix by its hash, within a bound of load"),
    "consistent_hash": ("bounded-load-hash", "places a prefix by its hash, within a bound of load"),
    "consistent_hashing": ("bounded-load-hash", "places a prefix by its hash, within a bound of load"),
    "session": ("session-hash", "see docs/policies.md for what is a session"),
    "manual": ("session-hash", "see docs/policies.md for what is a session"),
    "sticky_least_loaded": ("session-hash", "see docs/policies.md for what is a session"),
}


def _policy(into: Imported, flag: Flag) -> None:
    ours, note = _POLICIES.get(flag.value, ("", f"{flag.value!r} {_NOT_KNOWN}; the default, expected-delay, is used"))
    if ours:
        into.set("policy", ours)
    if note:
        into.note(f"--{flag.name} {flag.value}", f"{ours}: {note}" if ours else note)


def _worker_urls(into: Imported, flag: Flag) -> None:
    into.workers += [url for value in flag.values for url in value.split(",") if url]


def _tokenizer(into: Imported, flag: Flag) -> None:
    into.set("tokenizers", {"MODEL": flag.value})
    into.note(f"--{flag.name}", "put the model's served name for MODEL, and see that it is a local folder")


def _aliases(into: Imported, flag: Flag) -> None:
    """From name:model,name:model."""
    pairs = [pair.partition(":") for pair in flag.value.split(",")]
    into.set("rewrites", {alias.strip(): model.strip() for alias, _, model in pairs if alias and model})


_TUNING = "belongs to their policy cache_aware; expected-delay needs no thresholds"

RUST: Table = {
    "policy": _policy,
    "prefill-policy": says("disaggregated prefill is not known"),
    "decode-policy": says("disaggregated prefill is not known"),
    "pd-disaggregation": says("disaggregated prefill is not known"),
    "worker-urls": _worker_urls,
    "host": says(_PROXY),
    "port": says(_PROXY),
    **dict.fromkeys(
        ("cache-threshold", "balance-abs-threshold", "balance-rel-threshold", "eviction-interval",
         "eviction-interval-secs", "max-tree-size", "block-size"), says(_TUNING),
    ),
    "max-payload-size": sets("limits.max_body_bytes", int, "Envoy's own limit is per_connection_buffer_limit_bytes"),
    "request-timeout-secs": sets("limits.exchange_timeout_s", float, "Envoy's route has a timeout of its own"),
    "shutdown-grace-period-secs": sets("drain_s", float),
    "max-concurrent-requests": says("Envoy's circuit breakers, and docs/admission.md for what waits"),
    "queue-size": says("see docs/admission.md"),
    "queue-timeout-secs": says("see docs/admission.md"),
    "rate-limit-tokens-per-second": says("see docs/admission.md"),
    "cb-failure-threshold": sets("breaker.failures", int),
    "cb-timeout-duration-secs": sets("breaker.pause_s", float),
    "cb-success-threshold": says("one success closes a breaker"),
    "cb-window-duration-secs": says("failures in a row are counted, without a window"),
    **dict.fromkeys(
        ("retry-max-retries", "retry-initial-backoff-ms", "retry-max-backoff-ms", "retry-backoff-multiplier",
         "retry-jitter-factor", "disable-retries"), says(_ENVOYS),
    ),
    **dict.fromkeys(
        ("health-check-interval-secs", "health-check-timeout-secs", "health-failure-threshold",
         "health-success-threshold", "health-check-endpoint"), says("agents watch their workers: probe_interval_s"),
    ),
    **dict.fromkeys(
        ("service-discovery", "selector", "service-discovery-port", "service-discovery-namespace"), says(_DISCOVERY)
    ),
    "prometheus-port": port("metrics"),
    "prometheus-host": ignored,
    "log-dir": says("logs go to standard error"),
    "log-level": ignored,
    "log-json": lambda into, flag: into.set("log_format", "json"),
    "json-log": lambda into, flag: into.set("log_format", "json"),
    "tokenizer-path": _tokenizer,
    "model-path": _tokenizer,
    "api-key": says("clients are checked in Envoy; a key that workers want is the agent's api_key_file"),
    "dp-aware": ignored,
}  # fmt: skip

PRODUCTION_STACK: Table = {
    "routing-logic": _policy,
    "static-backends": _worker_urls,
    "static-models": says("agents ask the workers for their models"),
    "static-aliases": _aliases,
    "session-key": says("policy session-hash; see docs/policies.md for what is a session"),
    "service-discovery": says(_DISCOVERY),
    "k8s-namespace": says(_DISCOVERY),
    "k8s-port": says(_DISCOVERY),
    "k8s-label-selector": says(_DISCOVERY),
    "host": says(_PROXY),
    "port": says(_PROXY),
    "engine-stats-interval": says("agents ask the workers: probe_interval_s"),
    "request-stats-window": says("not needed: what is in flight is counted"),
    "log-stats": says("see the metrics"),
    "log-stats-interval": says("see the metrics"),
    "log-level": ignored,
    "log-format": lambda into, flag: into.set("log_format", "json" if flag.value == "json" else "console"),
    "callbacks": says(_NOT_KNOWN),
    "request-rewriter": says("names of models only: rewrites"),
    "lmcache-controller-port": says("KV events are heard through agents instead"),
    "kv-aware-threshold": says("KV events are heard through agents instead"),
    "tokenizer": _tokenizer,
    "max-instance-failover-reroute-attempts": sets("fallbacks", int, "Envoy tries so many; its retry policy says when"),
    "dynamic-config-yaml": says("picker.yaml is read again when it changes"),
    "dynamic-config-json": says("picker.yaml is read again when it changes"),
    "feature-gates": says(_NOT_KNOWN),
    "sentry-dsn": says(_NOT_KNOWN),
    "static-backend-health-checks": says("agents watch their workers"),
}
