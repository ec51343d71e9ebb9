"""Checks of Envoy's configuration. Each is a function from a way of requests to what is wrong with it; no I/O.

Each trap was seen with a real Envoy 1.40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from picker.doctor.checks import limits, messages, picks
from picker.doctor.configuration import Configuration, Way, ways
from picker.doctor.finding import Finding, Severity

Check = Callable[[Way], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    picks.header_strip,
    picks.late_header_strip,
    picks.override_source,
    picks.original_dst_list,
    messages.fail_open,
    limits.circuit_breaker,
    limits.buffer_limit,
    limits.message_timeout,
    limits.longest_wait,
    limits.route_timeout,
    messages.request_mode,
    messages.trailer_mode,
    messages.response_body,
    limits.idle_timeout,
    limits.control_frames,
    messages.grpc_retry,
    picks.route_retry,
    picks.metadata_namespace,
    messages.access_log,
)
"""In the order in which their findings are told."""


def check(configuration: Configuration, picker: str | None = None) -> list[Finding]:
    """All that is wrong; `picker`: looks only at ext_proc filters that ask this cluster."""
    found = ways(configuration, picker)
    if not found:
        return [_no_filter(picker)]
    # Two filters may share a cluster or a connection manager: say it once.
    return list(dict.fromkeys(finding for way in found for one in CHECKS for finding in one(way)))


def _no_filter(picker: str | None) -> Finding:
    return Finding(
        check="no-filter",
        severity=Severity.ERROR,
        where="the configuration",
        what="no route passes an ext_proc filter" + (f" that asks the cluster {picker}" if picker else ""),
        causes="requests never reach the picker",
        fix="start from one that works: picker envoy --list",
    )
