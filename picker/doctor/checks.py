"""Checks of Envoy's configuration. Each is a function from a way of requests to what is wrong with it; no I/O.

The limits are what the shipped configurations leave ample room to; each trap was seen with a real Envoy 1.40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from picker.doctor import remedies
from picker.doctor.configuration import Cluster, Configuration, Json, Route, Way, is_a, ways
from picker.doctor.finding import Finding, Severity
from picker.extproc.wire import DESTINATION

Check = Callable[[Way], Iterator[Finding]]

LEAST_STREAMS = 40_000
LEAST_CONTROL_FRAMES = 10_000
LEAST_BUFFER_BYTES = 8 << 20
LEAST_LONGEST_WAIT_S = 40.0
"""Admission lets requests wait for 30 s by default."""
LEAST_MESSAGE_TIMEOUT_S = 5.0
LEAST_STREAM_S = 600.0

_DEFAULT_REQUESTS = 1024
_DEFAULT_CONTROL_FRAMES = 1000
_DEFAULT_BUFFER_BYTES = 1 << 20
_DEFAULT_MESSAGE_TIMEOUT_S = 0.2
_DEFAULT_ROUTE_TIMEOUT_S = 15.0
_DEFAULT_IDLE_S = 300.0
_FULL_DUPLEX = "FULL_DUPLEX_STREAMED"
_LB = "envoy.lb"


def check(configuration: Configuration, picker: str | None = None) -> list[Finding]:
    """All that is wrong; `picker`: looks only at ext_proc filters that ask this cluster."""
    found = ways(configuration, picker)
    if not found:
        return [_no_filter(picker)]
    # Two filters may share a cluster or a connection manager: say it once.
    return list(dict.fromkeys(finding for way in found for one in CHECKS for finding in one(way)))


def circuit_breaker(way: Way) -> Iterator[Finding]:
    """A stream to the picker, and a request to a worker, is held for as long as an answer takes."""
    for cluster in (*([way.picker] if way.picker else []), *way.workers):
        low = [name for name in ("max_requests", "max_pending_requests") if _threshold(cluster, name) < LEAST_STREAMS]
        if low:
            yield Finding(
                check="circuit-breaker",
                severity=Severity.ERROR,
                where=f"cluster {cluster.name}",
                what=", ".join(f"{name} is {_threshold(cluster, name):,}" for name in low),
                causes="each LLM request in flight counts; those beyond it fail with 500 or 503 (overflow)",
                fix=remedies.CIRCUIT_BREAKERS,
            )


def control_frames(way: Way) -> Iterator[Finding]:
    """Many clients leaving at once are as many RST_STREAM frames to the picker."""
    frames = int(way.picker.http2.get("max_outbound_control_frames", _DEFAULT_CONTROL_FRAMES)) if way.picker else None
    if way.picker and frames is not None and frames < LEAST_CONTROL_FRAMES:
        yield Finding(
            check="control-frames",
            severity=Severity.WARNING,
            where=f"cluster {way.picker.name}",
            what=f"max_outbound_control_frames is {frames:,}",
            causes="when as many clients leave at once, Envoy drops its connection to the picker, with all on it",
            fix=remedies.CONTROL_FRAMES,
        )


def grpc_retry(way: Way) -> Iterator[Finding]:
    """Hides the restart of a picker."""
    if not way.ext_proc.get("grpc_service", {}).get("retry_policy"):
        yield Finding(
            check="grpc-retry",
            severity=Severity.WARNING,
            where=way.where,
            what="grpc_service has no retry_policy",
            causes="while a picker restarts, requests fail or go unpicked although another picker is there",
            fix=remedies.GRPC_RETRY,
        )


def header_strip(way: Way) -> Iterator[Finding]:
    """Whatever the picker does not overwrite must not come from a client."""
    mutations = [mutation for config in _early_mutations(way) for mutation in config]
    if any(str(mutation.get("remove", "")).lower() == DESTINATION for mutation in mutations):
        return
    any_address = any(cluster.is_original_dst for cluster in way.workers)
    yield Finding(
        check="header-strip",
        severity=Severity.ERROR if any_address else Severity.WARNING,
        where=f"listener {way.listener.get('name', '?')}, its HTTP connection manager",
        what=f"a client's own {DESTINATION} header is let in",
        causes="whenever the picker does not overwrite it, the client chooses "
        + ("any address in your network (SSRF)" if any_address else "the worker"),
        fix=remedies.HEADER_STRIP,
    )


def late_header_strip(way: Way) -> Iterator[Finding]:
    """The router removes these headers after ext_proc has set them."""
    for route in way.routes:
        if place := _removes_pick(route):
            yield Finding(
                check="late-header-strip",
                severity=Severity.ERROR,
                where=place,
                what=f"request_headers_to_remove names {DESTINATION}",
                causes="it runs after the picker: it removes the pick itself",
                fix="take it out there, and use the connection manager's early_header_mutation_extensions instead",
            )


def metadata_namespace(way: Way) -> Iterator[Finding]:
    """Envoy drops metadata in namespaces that it was not told to take."""
    namespaces = way.ext_proc.get("metadata_options", {}).get("receiving_namespaces", {}).get("untyped", [])
    if _LB not in namespaces:
        yield Finding(
            check="metadata-namespace",
            severity=Severity.WARNING,
            where=way.where,
            what=f"metadata_options.receiving_namespaces does not hold {_LB}",
            causes="Envoy drops the pick's copy in dynamic metadata; load balancers and logs that read it see nothing",
            fix="metadata_options: {receiving_namespaces: {untyped: [envoy.lb]}}",
        )


def buffer_limit(way: Way) -> Iterator[Finding]:
    """Only BUFFERED holds the whole body in Envoy."""
    limit = int(way.listener.get("per_connection_buffer_limit_bytes", _DEFAULT_BUFFER_BYTES))
    limits = [_body_limit(route, limit) for route in way.routes] or [limit]
    if way.request_body_mode == "BUFFERED" and min(limits) < LEAST_BUFFER_BYTES:
        yield Finding(
            check="buffer-limit",
            severity=Severity.ERROR,
            where=f"listener {way.listener.get('name', '?')}",
            what=f"request bodies may have {min(limits):,} bytes in mode BUFFERED",
            causes="longer conversations, and those with images, get 413",
            fix="per_connection_buffer_limit_bytes: 67108864",
        )


def message_timeout(way: Way) -> Iterator[Finding]:
    """Is no wait of the picker's, but cuts all of them short."""
    timeout = _seconds(way.ext_proc.get("message_timeout"), _DEFAULT_MESSAGE_TIMEOUT_S)
    if timeout < LEAST_MESSAGE_TIMEOUT_S:
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
    if way.request_body_mode == _FULL_DUPLEX:
        return
    times = [_seconds(way.ext_proc.get(name), 0.0) for name in ("message_timeout", "max_message_timeout")]
    if max(times) < LEAST_LONGEST_WAIT_S:
        yield Finding(
            check="longest-wait",
            severity=Severity.WARNING,
            where=way.where,
            what="max_message_timeout is not set" if not times[1] else f"max_message_timeout is {times[1]:g} s",
            causes="requests that wait for a worker with room become 504, or unpicked where the filter fails open",
            fix="max_message_timeout: 300s",
        )


def fail_open(way: Way) -> Iterator[Finding]:
    """Works with BUFFERED and a cluster that can balance by itself, and not otherwise."""
    if not way.ext_proc.get("failure_mode_allow"):
        return
    for cluster in way.workers:
        if cluster.is_original_dst:
            yield Finding(
                check="fail-open-original-dst",
                severity=Severity.ERROR,
                where=f"{way.where} and cluster {cluster.name}",
                what="failure_mode_allow with an ORIGINAL_DST cluster",
                causes="without a pick there is no address but a client's: 503, or the client's choice (SSRF)",
                fix="failure_mode_allow: false",
            )
    if way.request_body_mode == _FULL_DUPLEX:
        yield Finding(
            check="fail-open-full-duplex",
            severity=Severity.WARNING,
            where=way.where,
            what=f"failure_mode_allow with {_FULL_DUPLEX}",
            causes="requests with a body get 500 all the same when the picker is gone; only those without one pass",
            fix="failure_mode_allow: false (or request_body_mode: BUFFERED, which does fail open)",
        )


def trailer_mode(way: Way) -> Iterator[Finding]:
    """Bodies in full duplex end with trailers; the end of a response is only seen with them."""
    for side in ("request", "response"):
        duplex = way.mode.get(f"{side}_body_mode") == _FULL_DUPLEX
        if duplex and way.mode.get(f"{side}_trailer_mode") != "SEND":
            yield _trailers(
                way, side, f"{side}_body_mode is {_FULL_DUPLEX} without it", "Envoy refuses this configuration"
            )
        elif side == "response" and way.request_body_mode == _FULL_DUPLEX and not _end_is_seen(way.mode):
            causes = "Envoy ends the stream early: the picker counts the request as done while it runs"
            yield _trailers(way, side, "response_trailer_mode or response_header_mode is not SEND", causes)


def request_mode(way: Way) -> Iterator[Finding]:
    """Without the body there is no prefix; without the headers there is no moment to set the pick."""
    skipped = way.mode.get("request_header_mode") == "SKIP"
    if skipped or way.request_body_mode == "NONE":
        yield Finding(
            check="request-mode",
            severity=Severity.ERROR if skipped else Severity.WARNING,
            where=way.where,
            what="request_header_mode is SKIP" if skipped else "request_body_mode is NONE",
            causes="the router acts before the picker has answered: 503"
            if skipped
            else "the picker never sees a prompt: it places by load alone, and caches are not hit",
            fix="processing_mode: {request_header_mode: SEND, request_body_mode: BUFFERED}",
        )


def response_body(way: Way) -> Iterator[Finding]:
    """The picker wants the first byte and the end, and no body."""
    mode = way.mode.get("response_body_mode")
    if mode in ("STREAMED", "BUFFERED", "BUFFERED_PARTIAL"):
        holds = mode != "STREAMED"
        yield Finding(
            check="response-body",
            severity=Severity.ERROR if holds else Severity.ADVICE,
            where=way.where,
            what=f"response_body_mode is {mode}",
            causes="clients get streamed tokens all at once, at the end"
            if holds
            else "one more message for each token",
            fix="response_body_mode: NONE",
        )


def route_timeout(way: Way) -> Iterator[Finding]:
    """Of the whole response, streamed or not."""
    for route in way.routes:
        timeout = _seconds(route.action.get("timeout"), _DEFAULT_ROUTE_TIMEOUT_S)
        if 0 < timeout < LEAST_STREAM_S:
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
        if 0 < timeout < LEAST_STREAM_S:
            yield Finding(
                check="idle-timeout",
                severity=Severity.WARNING,
                where=f"listener {way.listener.get('name', '?')}, its HTTP connection manager",
                what=f"stream_idle_timeout is {timeout:g} s",
                causes="a request that waits or prefills for longer, and so sends nothing, becomes 504",
                fix="stream_idle_timeout: 3600s",
            )


def override_source(way: Way) -> Iterator[Finding]:
    """A cluster that does not look at the pick balances as it likes, without a word."""
    for cluster in way.workers:
        if not cluster.is_original_dst and not any(_is_pick(source) for source in _sources(cluster)):
            yield Finding(
                check="override-source",
                severity=Severity.ERROR,
                where=f"cluster {cluster.name}",
                what=f"its load balancer does not read {DESTINATION}",
                causes="picks are ignored, and requests spread as if there were no picker",
                fix=remedies.OVERRIDE_HOST,
            )


def route_retry(way: Way) -> Iterator[Finding]:
    """Each retry takes the next endpoint of the pick."""
    overridden = {cluster.name for cluster in way.workers if cluster.override_host}
    for route in way.routes:
        policy = route.action.get("retry_policy") or route.host.get("retry_policy")
        if not policy and overridden.intersection(route.clusters):
            yield Finding(
                check="route-retry",
                severity=Severity.WARNING,
                where=route.where,
                what="no retry_policy",
                causes="the picker's fallbacks are never used: a worker that is gone is an error for the client",
                fix=remedies.ROUTE_RETRY,
            )


def original_dst_list(way: Way) -> Iterator[Finding]:
    """It takes one address; the picker names up to three."""
    for cluster in way.workers:
        source = cluster.config.get("original_dst_lb_config", {})
        if cluster.is_original_dst and "metadata_key" not in source:
            yield Finding(
                check="original-dst-list",
                severity=Severity.ERROR,
                where=f"cluster {cluster.name}",
                what=f"ORIGINAL_DST reads the header {source.get('http_header_name', '(none)')} as it is",
                causes="the picker names fallbacks too; ORIGINAL_DST answers a list with 503",
                fix=remedies.FIRST_OF_LIST,
            )


def access_log(way: Way) -> Iterator[Finding]:
    """How the picker learns what became of its picks."""
    logs = (log.get("typed_config", {}) for log in way.manager.get("access_log", []))
    if not any(is_a(log, "HttpGrpcAccessLogConfig") for log in logs):
        yield Finding(
            check="access-log",
            severity=Severity.ADVICE,
            where=f"listener {way.listener.get('name', '?')}, its HTTP connection manager",
            what="no gRPC access log to the picker",
            causes="the picker cannot count retries, failures and picks that Envoy did not follow",
            fix=remedies.ACCESS_LOG,
        )


CHECKS: tuple[Check, ...] = (
    header_strip,
    late_header_strip,
    override_source,
    original_dst_list,
    fail_open,
    circuit_breaker,
    buffer_limit,
    message_timeout,
    longest_wait,
    route_timeout,
    request_mode,
    trailer_mode,
    response_body,
    idle_timeout,
    control_frames,
    grpc_retry,
    route_retry,
    metadata_namespace,
    access_log,
)


def _no_filter(picker: str | None) -> Finding:
    return Finding(
        check="no-filter",
        severity=Severity.ERROR,
        where="the configuration",
        what="no route passes an ext_proc filter" + (f" that asks the cluster {picker}" if picker else ""),
        causes="requests never reach the picker",
        fix="start from one that works: picker envoy --list",
    )


def _trailers(way: Way, side: str, what: str, causes: str) -> Finding:
    return Finding(
        check="trailer-mode",
        severity=Severity.ERROR,
        where=way.where,
        what=what,
        causes=causes,
        fix=f"processing_mode: {{{side}_header_mode: SEND, {side}_trailer_mode: SEND}}",
    )


def _end_is_seen(mode: Json) -> bool:
    return mode.get("response_header_mode") != "SKIP" and mode.get("response_trailer_mode") == "SEND"


def _threshold(cluster: Cluster, name: str) -> int:
    thresholds = cluster.config.get("circuit_breakers", {}).get("thresholds", [])
    said = [one[name] for one in thresholds if one.get("priority", "DEFAULT") == "DEFAULT" and name in one]
    return int(said[0]) if said else _DEFAULT_REQUESTS


def _early_mutations(way: Way) -> Iterator[list[Json]]:
    """Of the connection manager, and of header_mutation filters before ext_proc."""
    for extension in way.manager.get("early_header_mutation_extensions", []):
        yield extension.get("typed_config", {}).get("mutations", [])
    for http_filter in way.before:
        mutations = http_filter.get("typed_config", {}).get("mutations", {})
        if is_a(http_filter.get("typed_config", {}), "header_mutation.v3.HeaderMutation"):
            yield mutations.get("request_mutations", [])


def _removes_pick(route: Route) -> str | None:
    places = {
        f"route table {route.table.get('name', '?')}": route.table,
        f"virtual host {route.host.get('name', '?')}": route.host,
        route.where: route.config,
    }
    removed = {where: place.get("request_headers_to_remove", []) for where, place in places.items()}
    return next((where for where, names in removed.items() if DESTINATION in map(str.lower, names)), None)


def _body_limit(route: Route, otherwise: int) -> int:
    said = route.config.get("request_body_buffer_limit", route.host.get("request_body_buffer_limit"))
    return int(said) if said is not None else otherwise


def _sources(cluster: Cluster) -> list[Json]:
    sources: list[Json] = (cluster.override_host or {}).get("override_host_sources", [])
    return sources


def _is_pick(source: Json) -> bool:
    metadata = source.get("metadata", {})
    path = [step.get("key") for step in metadata.get("path", [])]
    return str(source.get("header", "")).lower() == DESTINATION or (metadata.get("key"), path) == (_LB, [DESTINATION])


def _seconds(duration: Any, otherwise: float) -> float:
    """Of protobuf's JSON form, such as 5s or 0.25s."""
    return otherwise if duration is None else float(str(duration).removesuffix("s"))
