"""Whether Envoy has room and time for requests that are long, wait long and are many.

What the shipped configurations say is far above the least that is asked for here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from picker.doctor import remedies
from picker.doctor.configuration import FULL_DUPLEX, Cluster, Route, Way
from picker.doctor.finding import Finding, Severity

_LEAST_STREAMS = 40_000
_LEAST_CONTROL_FRAMES = 10_000
_LEAST_BUFFER_BYTES = 8 << 20
_LEAST_LONGEST_WAIT_S = 40.0
"""Admission lets requests wait for 30 s by default."""
_LEAST_MESSAGE_TIMEOUT_S = 5.0
_LEAST_STREAM_S = 600.0

# Envoy's, where the configuration does not say.
_DEFAULT_REQUESTS = 1024
_DEFAULT_CONTROL_FRAMES = 1000
_DEFAULT_BUFFER_BYTES = 1 << 20
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2
_DEFAULT_ROUTE_TIMEOUT_S = 15.0
_DEFAULT_IDLE_S = 300.0


def circuit_breaker(way: Way) -> Iterator[Finding]:
    """A stream to the picker, and a request to a worker, is held for as long as an answer takes."""
    for cluster in (*([way.picker] if way.picker else []), *way.workers):
        low = [name for name in ("max_requests", "max_pending_requests") if _threshold(cluster, name) < _LEAST_STREAMS]
        if low:
            yield Finding(
                check="circuit-breaker",
                severity=Severity.ERROR,
                where=cluster.where,
                what=", ".join(f"{name} is {_threshold(cluster, name):,}" for name in low),
                causes="each LLM request in flight counts; those beyond it fail with 500 or 503 (overflow)",
                fix=remedies.CIRCUIT_BREAKERS,
            )


def control_frames(way: Way) -> Iterator[Finding]:
    """Many clients leaving at once are as many RST_STREAM frames to the picker."""
    if way.picker is None:
        return
    frames = int(way.picker.http2.get("max_outbound_control_frames", _DEFAULT_CONTROL_FRAMES))
    if frames < _LEAST_CONTROL_FRAMES:
        yield Finding(
            check="control-frames",
            severity=Severity.WARNING,
            where=way.picker.where,
            what=f"max_outbound_control_frames is {frames:,}",
            causes="when as many clients leave at once, Envoy drops its connection to the picker, with all on it",
            fix=remedies.CONTROL_FRAMES,
        )


def buffer_limit(way: Way) -> Iterator[Finding]:
    """Only BUFFERED holds the whole body in Envoy."""
    limit = int(way.listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    limits = [_body_limit(route, limit) for route in way.routes] or [limit]
    if way.request_body_mode == "BUFFERED" and min(limits) < _LEAST_BUFFER_BYTES:
        yield Finding(
            check="buffer-limit",
            severity=Severity.ERROR,
            where=way.where_listener,
            what=f"request bodies may have {min(limits):,} bytes in mode BUFFERED",
            causes="longer conversations, and those with images, get 413",
            fix="per_connection_buffer_limit_bytes: 67108864",
        )


def message_timeout(way: Way) -> Iterator[Finding]:
    """Is no wait of the picker's, but cuts all of them short."""
    timeout = _seconds(way.ext_proc.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)
    if timeout < _LEAST_MESSAGE_TIMEOUT_S:
        yield Finding(
            check="message-timeout",
            severity=Severity.ERROR,
            where=way.where,
            what=f"message_timeout is {timeout:g} s",
            causes="large prompts and a busy moment become 504, or unpicked requests where the filter fails open",
            fix="message_timeout: 5s",
        )


def longest_wait(way: Way) -> Iterator[Finding]:
    """A picker asks for more time for a request that waits; Envoy grants nothing where this is not set."""
    if way.request_body_mode == FULL_DUPLEX:
        return
    times = [_seconds(way.ext_proc.get(name), 0.0) for name in ("message_timeout", "max_message_timeout")]
    if max(times) < _LEAST_LONGEST_WAIT_S:
        yield Finding(
            check="longest-wait",
            severity=Severity.WARNING,
            where=way.where,
            what="max_message_timeout is not set" if not times[1] else f"max_message_timeout is {times[1]:g} s",
            causes="requests that wait for a worker with room become 504, or unpicked where the filter fails open",
            fix="max_message_timeout: 300s",
        )


def route_timeout(way: Way) -> Iterator[Finding]:
    """Of the whole response, streamed or not."""
    for route in way.routes:
        timeout = _seconds(route.action.get("timeout"), _DEFAULT_ROUTE_TIMEOUT_S)
        if 0 < timeout < _LEAST_STREAM_S:
            yield Finding(
                check="route-timeout",
                severity=Severity.ERROR,
                where=route.where,
                what=f"timeout is {timeout:g} s",
                causes="longer answers are cut off, or become 504",
                fix="timeout: 0s",
            )


def idle_timeout(way: Way) -> Iterator[Finding]:
    """A long prefill, or a queue, sends nothing."""
    manager = _seconds(way.manager.get("stream_idle_timeout"), _DEFAULT_IDLE_S)
    for timeout in {_seconds(route.action.get("idle_timeout"), manager) for route in way.routes} or {manager}:
        if 0 < timeout < _LEAST_STREAM_S:
            yield Finding(
                check="idle-timeout",
                severity=Severity.WARNING,
                where=way.where_manager,
                what=f"stream_idle_timeout is {timeout:g} s",
                causes="a request that waits or prefills for longer, and so sends nothing, becomes 504",
                fix="stream_idle_timeout: 3600s",
            )


def _threshold(cluster: Cluster, name: str) -> int:
    thresholds = cluster.config.get("circuit_breakers", {}).get("thresholds", [])
    said = [one[name] for one in thresholds if one.get("priority", "DEFAULT") == "DEFAULT" and name in one]
    return int(said[0]) if said else _DEFAULT_REQUESTS


def _body_limit(route: Route, otherwise: int) -> int:
    said = route.config.get("request_body_buffer_limit", route.host.get("request_body_buffer_limit"))
    return int(said) if said is not None else otherwise


def _seconds(duration: Any, otherwise: float) -> float:
    """Of protobuf's JSON form, such as 5s or 0.25s."""
    return otherwise if duration is None else float(str(duration).removesuffix("s"))
