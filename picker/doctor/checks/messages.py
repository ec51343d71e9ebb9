"""Whether Envoy tells the picker what it needs to know, and what becomes of requests when it does not answer."""

from __future__ import annotations

from collections.abc import Iterator

from picker.doctor import remedies
from picker.doctor.configuration import FULL_DUPLEX, Json, Way, is_a
from picker.doctor.finding import Finding, Severity


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


def trailer_mode(way: Way) -> Iterator[Finding]:
    """Bodies in full duplex end with trailers; the end of a response is only seen with them."""
    for side in ("request", "response"):
        duplex = way.mode.get(f"{side}_body_mode") == FULL_DUPLEX
        if duplex and way.mode.get(f"{side}_trailer_mode") != "SEND":
            yield _trailers(
                way, side, f"{side}_body_mode is {FULL_DUPLEX} without it", "Envoy refuses this configuration"
            )
        elif side == "response" and way.request_body_mode == FULL_DUPLEX and not _end_is_seen(way.mode):
            causes = "Envoy ends the stream early: the picker counts the request as done while it runs"
            yield _trailers(way, side, "response_trailer_mode or response_header_mode is not SEND", causes)


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


def fail_open(way: Way) -> Iterator[Finding]:
    """Works with BUFFERED and a cluster that can balance by itself, and not otherwise."""
    if not way.ext_proc.get("failure_mode_allow"):
        return
    for cluster in way.workers:
        if cluster.is_original_dst:
            yield Finding(
                check="fail-open-original-dst",
                severity=Severity.ERROR,
                where=f"{way.where} and {cluster.where}",
                what="failure_mode_allow with an ORIGINAL_DST cluster",
                causes="without a pick there is no address but a client's: 503, or the client's choice (SSRF)",
                fix="failure_mode_allow: false",
            )
    if way.request_body_mode == FULL_DUPLEX:
        yield Finding(
            check="fail-open-full-duplex",
            severity=Severity.WARNING,
            where=way.where,
            what=f"failure_mode_allow with {FULL_DUPLEX}",
            causes="requests with a body get 500 all the same when the picker is gone; only those without one pass",
            fix="failure_mode_allow: false (or request_body_mode: BUFFERED, which does fail open)",
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


def access_log(way: Way) -> Iterator[Finding]:
    """How the picker learns what became of its picks."""
    logs = (log.get("typed_config", {}) for log in way.manager.get("access_log", []))
    if not any(is_a(log, "HttpGrpcAccessLogConfig") for log in logs):
        yield Finding(
            check="access-log",
            severity=Severity.ADVICE,
            where=way.where_manager,
            what="no gRPC access log to the picker",
            causes="the picker cannot count retries, failures and picks that Envoy did not follow",
            fix=remedies.ACCESS_LOG,
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
