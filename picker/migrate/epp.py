"""The reference endpoint picker's command line (llm-d, Gateway API Inference Extension), which charts pass.

`picker serve` takes these flags as well, so that a chart's Deployment needs another image only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from picker.migrate.durations import duration_s
from picker.migrate.flags import Flag, Table, apply, flags, ignored, port, says, sets
from picker.migrate.imported import Imported

_DISCOVERY = "the InferencePool says which pods there are, or agents do (docs/gateways.md)"
_METRICS = "agents ask the engines; see probe_interval_s in docs/configuration.md"


def _secure(into: Imported, flag: Flag) -> None:
    if flag.is_on:
        into.set("tls", into.settings.get("tls") or {})
    else:
        into.settings.pop("tls", None)


def _cert_path(into: Imported, flag: Flag) -> None:
    folder = flag.value.rstrip("/")
    into.set("tls", {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key"})


def _encoder(into: Imported, flag: Flag) -> None:
    into.set("log_format", "json" if flag.value == "json" else "console")


TABLE: Table = {
    "pool-name": sets("pool"),
    # Where the chart names a namespace, the picker runs in a cluster, with the right to read the pool there.
    "pool-namespace": sets("kubernetes.namespace"),
    "pool-group": sets("kubernetes.group"),
    "endpoint-selector": says(_DISCOVERY),
    "endpoint-target-ports": says(_DISCOVERY),
    "grpc-port": port("listen"),
    "grpc-health-port": port("health"),
    "metrics-port": port("metrics"),
    "health-checking": ignored,
    "secure-serving": _secure,
    "cert-path": _cert_path,
    "enable-cert-reload": ignored,
    "drain-timeout": sets("drain_s", duration_s),
    "zap-encoder": _encoder,
    "zap-devel": ignored,
    "zap-log-level": ignored,
    "zap-stacktrace-level": ignored,
    "zap-time-encoding": ignored,
    "v": ignored,
    "tracing": says("not a flag here"),
    "enable-pprof": ignored,
    "metrics-endpoint-auth": says("metrics are served without authentication; keep their port inside (NetworkPolicy)"),
    "metrics-cert-dir": says("metrics are served in plain text"),
    "refresh-metrics-interval": says(_METRICS),
    "refresh-prometheus-metrics-interval": says(_METRICS),
    "metrics-staleness-threshold": sets("stale_after_s", duration_s),
    "model-server-metrics-scheme": says(_METRICS),
    "model-server-metrics-path": says(_METRICS),
    "model-server-metrics-port": says(_METRICS),
    "ha-enable-leader-election": says("not needed: all pickers serve, and share what they place through Redis"),
    "allow-experimental-plugins": ignored,
    "config-file": says("not read from here: picker config import FILE brings it over"),
    "config-text": says("not read from here: write it to a file; picker config import FILE brings it over"),
}


class UnknownFlag(ValueError):
    """A flag that neither we nor the reference picker have. The message names it."""


def drop_in(words: Sequence[str]) -> Imported:
    """What such a command line means; nothing for no words. Raises UnknownFlag."""
    imported = Imported("the reference endpoint picker's command line")
    if not words:
        return imported
    if unknown := list(_unknown(words)):
        raise UnknownFlag(f"{unknown[0]} is no option; see picker serve --help")
    imported.set("tls", {})
    imported.set("listen", "0.0.0.0:9002")
    imported.set("health", "0.0.0.0:9003")
    imported.set("metrics", "0.0.0.0:9090")
    apply(TABLE, words, imported)
    return imported


def _unknown(words: Sequence[str]) -> Iterator[str]:
    if not words[0].startswith("-"):
        yield words[0]
    for flag in flags(words):
        if flag.name not in TABLE:
            yield f"--{flag.name}"
