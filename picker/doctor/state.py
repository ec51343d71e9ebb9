"""Checks of what Envoy and the picker have counted so far, and of whom they know; no I/O.

Counters never go back: a fault that is mended stays in them until a restart. So two readings are compared, and what
still grows is told from what is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from picker.doctor import remedies
from picker.doctor.configuration import Json, Way
from picker.doctor.finding import Finding, Severity

Counters = Mapping[str, float]
"""Name -> value."""

_HALF_CLOSED = "server_half_closed"


@dataclass(frozen=True, slots=True)
class _Alarm:
    """A counter that ought to be zero."""

    name: str
    check: str
    severity: Severity
    what: str
    causes: str
    fix: str


_ENVOY = (
    _Alarm(
        r"http\..+\.ext_proc\.(?:.+\.)?server_half_closed",
        "half-closed",
        Severity.ERROR,
        "ext_proc streams that the picker closed without an error before it was done",
        "Envoy takes it for consent: requests went on unpicked, or with an empty body",
        "a defect of the picker's, or another server on its port: look into its log, and update it",
    ),
    _Alarm(
        r"http\..+\.ext_proc\.(?:.+\.)?streams_failed",
        "streams-failed",
        Severity.WARNING,
        "ext_proc streams that failed: the picker was away, or refused them",
        "503 for the client, or unpicked where the filter fails open",
        "see whether the picker runs and is reached: its log, and Envoy's stats cluster.<picker>.upstream_cx_*",
    ),
    _Alarm(
        r"http\..+\.ext_proc\.(?:.+\.)?failure_mode_allowed",
        "failed-open",
        Severity.WARNING,
        "requests that went on unpicked because the picker failed (failure_mode_allow)",
        "Envoy balanced them by itself: caches are not hit",
        "find out why streams failed or messages timed out; a second picker and grpc_service.retry_policy help",
    ),
    _Alarm(
        r"http\..+\.ext_proc\.(?:.+\.)?message_timeouts",
        "message-timeouts",
        Severity.WARNING,
        "messages that the picker did not answer within message_timeout",
        "504 for the client, or unpicked where the filter fails open",
        "raise message_timeout, or give the picker more CPU: picker_pick_seconds tells which",
    ),
    _Alarm(
        r"cluster\..+\.upstream_rq_(?:active|pending)_overflow",
        "overflow",
        Severity.ERROR,
        "requests refused by a circuit breaker",
        "500 or 503 for the client",
        remedies.CIRCUIT_BREAKERS,
    ),
    _Alarm(
        r"cluster\..+\.original_dst_host_invalid",
        "original-dst-invalid",
        Severity.ERROR,
        "requests whose address ORIGINAL_DST could not use",
        "503: a list or a name instead of one ip:port",
        remedies.FIRST_OF_LIST,
    ),
    _Alarm(
        r"cluster\..+\.http2\.outbound_control_flood",
        "control-flood",
        Severity.ERROR,
        "connections that Envoy dropped because of many RST_STREAM frames at once",
        "all requests on them failed",
        remedies.CONTROL_FRAMES,
    ),
)

_PICKER = (
    _Alarm(
        "picker_picks_not_honoured_total",
        "picks-not-honoured",
        Severity.ERROR,
        "requests that somebody else served than the picker had said",
        "caches are not hit; the cluster does not know these workers, or does not look at the pick",
        "compare Envoy's /clusters with the picker's workers; every pool needs a picker and a cluster of its own",
    ),
    _Alarm(
        "picker_internal_errors_total",
        "internal-errors",
        Severity.ERROR,
        "picks that failed by a defect of the picker's",
        "Envoy chose instead: caches are not hit",
        "its log has the traceback",
    ),
    _Alarm(
        "picker_sharing_refused",
        "sharing-refused",
        Severity.WARNING,
        "writes that Redis did not take from the picker",
        "other pickers do not see what this one has in flight, and send bursts to the same workers",
        "its log says why (redis_refuses); picker doctor --redis URL looks further",
    ),
)


def check_envoy(before: Counters, now: Counters, seconds: float) -> list[Finding]:
    """Counters of `/stats`, read twice with so much time between."""
    before, now = _half_closed_by_choice(before), _half_closed_by_choice(now)
    return [finding for alarm in _ENVOY for finding in _raised(alarm, before, now, seconds)]


def check_picker(before: Counters, now: Counters, seconds: float) -> list[Finding]:
    """The picker's metrics, summed over labels, read twice as well."""
    findings = [finding for alarm in _PICKER for finding in _raised(alarm, before, now, seconds)]
    if now.get("picker_redis_connected") == 0:
        findings.append(_REDIS_AWAY)
    if now.get("picker_workers_ready") == 0:
        findings.append(_NO_WORKERS)
    return findings


def check_clusters(found: list[Way], hosts: Mapping[str, int], metrics: Counters) -> list[Finding]:
    """Whether the clusters that obey picks have all the workers that may be picked. `hosts`: how many, by cluster."""
    ready = int(metrics.get("picker_workers_ready", 0))
    clusters = {cluster.name: cluster for way in found for cluster in way.workers if cluster.override_host}
    return [
        Finding(
            check="workers-unknown",
            severity=Severity.ERROR,
            where=f"cluster {name}",
            what=f"it has {hosts.get(name, 0)} hosts, and the picker has {ready} workers to pick",
            causes="picks of workers that the cluster does not have fall back to Envoy's own balancing, without a word",
            fix="let the cluster take its endpoints from the picker (type: EDS), or list all workers in it",
        )
        for name in clusters
        if hosts.get(name, 0) < ready
    ]


def counters(stats: Json) -> dict[str, float]:
    """From `/stats?format=json`."""
    return {stat["name"]: float(stat["value"]) for stat in stats["stats"] if "name" in stat and _is_number(stat)}


def host_counts(clusters: Json) -> dict[str, int]:
    """From `/clusters?format=json`: hosts, by cluster."""
    return {one["name"]: len(one.get("host_statuses", [])) for one in clusters.get("cluster_statuses", [])}


def _is_number(stat: Json) -> bool:
    return isinstance(stat.get("value"), int | float)


def _half_closed_by_choice(counters: Counters) -> Counters:
    """Envoy 1.40 counts a stream that failed as half-closed too, once or twice: leave these out."""
    chosen = {
        name: max(0.0, value - 2 * counters.get(name.removesuffix(_HALF_CLOSED) + "streams_failed", 0.0))
        for name, value in counters.items()
        if name.endswith(_HALF_CLOSED)
    }
    return {**counters, **chosen}


def _raised(alarm: _Alarm, before: Counters, now: Counters, seconds: float) -> Iterator[Finding]:
    for name, value in now.items():
        if value > 0 and re.fullmatch(alarm.name, name):
            growth = value - before.get(name, 0.0)
            still = f"{growth:,.0f} of them in the last {seconds:g} s" if growth > 0 else "none lately"
            yield Finding(
                check=alarm.check,
                severity=alarm.severity,
                where=name,
                what=f"{value:,.0f} {alarm.what}; {still}",
                causes=alarm.causes,
                fix=alarm.fix,
            )


_REDIS_AWAY = Finding(
    check="redis-away",
    severity=Severity.WARNING,
    where="picker_redis_connected",
    what="the picker has no connection to Redis",
    causes="it goes on with what it knew; loads and caches age, and new workers stay unknown",
    fix="see whether Redis runs, and the setting redis; picker doctor --redis URL looks further",
)
_NO_WORKERS = Finding(
    check="no-workers",
    severity=Severity.ERROR,
    where="picker_workers_ready",
    what="the picker has no worker to pick",
    causes="clients get 503",
    fix="see whether the agents run, and whether their pool and Redis are the picker's",
)
