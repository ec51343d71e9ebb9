"""Actions to Envoy's messages. Values in, bytes out; no gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2

from picker.extproc import actions as do
from picker.extproc.wire.names import DECISION, DESTINATION, DROPPED, LB, PREFILLER, REASON, STRIPPED
from picker.requests.errors import error_body
from picker.requests.read import dialect_of

_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD


def build(action: do.Action) -> bytes:
    """The message for an action that is one. One function for each kind of them; the constant ones are built once."""
    return BUILDERS[type(action)](action)


_CONSTANT: dict[type[Any], bytes] = {
    do.SendHeadersContinue: pb.ProcessingResponse(request_headers=pb.HeadersResponse()).SerializeToString(),
    do.SendBodyContinue: pb.ProcessingResponse(request_body=pb.BodyResponse()).SerializeToString(),
    do.SendTrailersContinue: pb.ProcessingResponse(request_trailers=pb.TrailersResponse()).SerializeToString(),
    do.SendResponseBodyContinue: pb.ProcessingResponse(response_body=pb.BodyResponse()).SerializeToString(),
    do.SendResponseHeadersContinue: pb.ProcessingResponse(response_headers=pb.HeadersResponse()).SerializeToString(),
    do.SendResponseTrailersContinue: pb.ProcessingResponse(response_trailers=pb.TrailersResponse()).SerializeToString(),
}


def _constant(message: bytes, action: do.Action) -> bytes:
    return message


def _send_headers_pick(action: do.SendHeadersPick) -> bytes:
    message = _headers_pick(action.endpoints, action.prefiller)
    return message + _traced("request_headers", action.traceparent) if action.traceparent else message


def _send_body_pick(action: do.SendBodyPick) -> bytes:
    if action.new_body is None:
        message = _body_pick(action.endpoints, action.prefiller)
        return message + _traced("request_body", action.traceparent) if action.traceparent else message
    common = _common(action.endpoints, action.prefiller)
    common.body_mutation.body = action.new_body
    # Envoy 1.40 answers 500 where the length that it forwards is not that of the new body.
    _set(common.header_mutation, "content-length", str(len(action.new_body)))
    message = pb.ProcessingResponse(request_body=pb.BodyResponse(response=common))
    return _with_metadata(message, action.endpoints) + _traced("request_body", action.traceparent)


def _send_body_continue(action: do.SendBodyContinue) -> bytes:
    if action.new_data is None:
        return _CONSTANT[do.SendBodyContinue]
    message = pb.ProcessingResponse()
    mutation = message.request_body.response.body_mutation
    if action.new_data:
        mutation.body = action.new_data
    else:
        mutation.clear_body = True
    return bytes(message.SerializeToString())


@lru_cache(maxsize=4096)
def _headers_pick(endpoints: tuple[str, ...], prefiller: str) -> bytes:
    message = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=_common(endpoints, prefiller)))
    return _with_metadata(message, endpoints)


@lru_cache(maxsize=4096)
def _body_pick(endpoints: tuple[str, ...], prefiller: str) -> bytes:
    message = pb.ProcessingResponse(request_body=pb.BodyResponse(response=_common(endpoints, prefiller)))
    return _with_metadata(message, endpoints)


def _traced(part: str, traceparent: str) -> bytes:
    """To be appended: concatenated messages are merged, and the rest is the same for many requests."""
    if not traceparent:
        return b""
    message = pb.ProcessingResponse()
    _set(getattr(message, part).response.header_mutation, "traceparent", traceparent)
    return bytes(message.SerializeToString())


def _common(endpoints: tuple[str, ...], prefiller: str) -> pb.CommonResponse:
    common = pb.CommonResponse()
    common.header_mutation.remove_headers.extend(name for name in STRIPPED if not prefiller or name != PREFILLER)
    if prefiller:
        _set(common.header_mutation, PREFILLER, prefiller)
    if endpoints:
        _set(common.header_mutation, DESTINATION, ",".join(endpoints))
    else:
        # A client's own header must not stand in for a pick.
        common.header_mutation.remove_headers.append(DESTINATION)
    return common


def _with_metadata(message: pb.ProcessingResponse, endpoints: tuple[str, ...]) -> bytes:
    """The protocol wants the header's value in the metadata too; Envoy takes it if `receiving_namespaces` says so."""
    if endpoints:
        fields = message.dynamic_metadata.fields[LB].struct_value.fields
        fields[DESTINATION].string_value = ",".join(endpoints)
    return bytes(message.SerializeToString())


def _send_extension(action: do.SendExtension) -> bytes:
    message = pb.ProcessingResponse()
    message.override_message_timeout.FromMilliseconds(round(action.seconds * 1000))
    return bytes(message.SerializeToString())


def _send_body_piece(action: do.SendBodyPiece) -> bytes:
    message = pb.ProcessingResponse()
    piece = message.request_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = action.data, action.end_of_stream
    return bytes(message.SerializeToString())


def _send_response_body_piece(action: do.SendResponseBodyPiece) -> bytes:
    message = pb.ProcessingResponse()
    piece = message.response_body.response.body_mutation.streamed_response
    piece.body, piece.end_of_stream = action.data, action.end_of_stream
    return bytes(message.SerializeToString())


def _send_response_headers(action: do.SendResponseHeadersContinue) -> bytes:
    if not action.header and not action.decision:
        return _CONSTANT[do.SendResponseHeadersContinue]
    message = pb.ProcessingResponse()
    mutation = message.response_headers.response.header_mutation
    if action.header:
        _set(mutation, action.header, action.served)
    if action.decision:
        _set(mutation, DECISION, action.decision)
    return bytes(message.SerializeToString())


_GRPC_STATUS = {400: 3, 404: 12, 408: 4, 413: 8, 429: 8, 503: 14}
"""HTTP to gRPC: INVALID_ARGUMENT, UNIMPLEMENTED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE."""
_UNKNOWN = 2
_DROPPED = {
    "picker-busy": "rejected-saturated",
    "no-workers": "rejected-no-endpoints",
    "no-worker-ready": "rejected-no-endpoints",
    "subset-has-no-worker": "rejected-no-endpoints",
    "all-workers-full": "rejected-saturated",
    "queue-full": "rejected-saturated",
    "class-queue-full": "rejected-saturated",
    "tenant-queue-full": "rejected-saturated",
    "deadline-unreachable": "rejected-saturated",
    "cold-session": "rejected-saturated",
    "queue-timeout": "rejected-ttl-expired",
    "no-worker-came": "rejected-no-endpoints",
    "displaced": "evicted",
    "preempted": "evicted",
    "shutting-down": "rejected-shutting-down",
}
"""Our reasons in the words of the reference picker's header, for the reasons that it has."""


def _send_refusal(action: do.SendRefusal) -> bytes:
    message = pb.ProcessingResponse()
    immediate = message.immediate_response
    immediate.status.code = http_status_pb2.StatusCode.Name(action.status)
    immediate.body = error_body(dialect_of(action.headers), action.status, action.reason, action.message)
    if action.headers.get("content-type", "").startswith("application/grpc"):
        # Envoy answers a gRPC client with trailers only, and this status in them.
        immediate.grpc_status.status = _GRPC_STATUS.get(action.status, _UNKNOWN)
    # Shows up as %RESPONSE_CODE_DETAILS% in Envoy's access log.
    immediate.details = f"picker:{action.reason}"
    _set(immediate.headers, "content-type", "application/json")
    _set(immediate.headers, REASON, action.reason)
    if action.reason in _DROPPED:
        _set(immediate.headers, DROPPED, _DROPPED[action.reason])
    if action.retry_after_s:
        _set(immediate.headers, "retry-after", str(action.retry_after_s))
    return bytes(message.SerializeToString())


def _set(mutation: pb.HeaderMutation, name: str, value: str) -> None:
    option = mutation.set_headers.add()
    option.header.key = name
    # Envoy 1.40 drops a header whose text is in `value` without a word, and refuses one that has both.
    option.header.raw_value = value.encode()
    # Envoy overwrites whatever this says; other data planes append where it says nothing.
    option.append_action = _OVERWRITE


BUILDERS: Mapping[type[Any], Callable[[Any], bytes]] = {
    **{kind: partial(_constant, message) for kind, message in _CONSTANT.items()},
    do.SendHeadersPick: _send_headers_pick,
    do.SendBodyPick: _send_body_pick,
    do.SendBodyContinue: _send_body_continue,
    do.SendExtension: _send_extension,
    do.SendBodyPiece: _send_body_piece,
    do.SendResponseBodyPiece: _send_response_body_piece,
    do.SendResponseHeadersContinue: _send_response_headers,
    do.SendRefusal: _send_refusal,
}
"""By the kind of action; what is not here is no message."""
