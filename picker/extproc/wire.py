"""Envoy's protobuf messages to events, and actions to messages. Bytes on one side, values on the other; no gRPC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2

from picker.extproc import actions as do
from picker.extproc.events import (
    BodyMode,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.fleet.endpoints import canonical
from picker.requests.errors import error_body
from picker.requests.read import dialect_of

DESTINATION = "x-gateway-destination-endpoint"
SUBSET = "x-gateway-destination-endpoint-subset"
SERVED = "x-gateway-destination-endpoint-served"
REASON = "x-picker-reason"
DECISION = "x-picker-decision"
DROPPED = "x-llm-d-request-dropped-reason"
PREFILLER = "x-prefiller-host-port"
STRIPPED = (
    SUBSET,
    SERVED,
    REASON,
    DROPPED,
    "x-picker-endpoint",
    PREFILLER,
    "x-encoder-hosts-ports",
    "x-data-parallel-host-port",
)
"""Headers that choose hosts or speak for us: a client's copies never reach a worker."""
_LB = "envoy.lb"
_HINT = "envoy.lb.subset_hint"
_OURS = "picker"
_ATTRIBUTES = "envoy.filters.http.ext_proc"
_OVERWRITE = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_MODES = {mode.value: mode for mode in BodyMode}


class Unreadable(ValueError):
    """Bytes that are no `ProcessingRequest`, or one of a kind that we do not know."""


def parse(data: bytes) -> Event:
    """One message of Envoy's. Raises Unreadable."""
    try:
        message = pb.ProcessingRequest.FromString(data)
    except Exception as error:  # protobuf's DecodeError lives in a private module, and differs between implementations
        raise Unreadable(type(error).__name__) from None
    kind = message.WhichOneof("request")
    if kind == "request_body":
        return RequestBody(message.request_body.body, message.request_body.end_of_stream)
    if kind == "request_headers":
        return _request_headers(message)
    if kind == "response_headers":
        return _response_headers(message)
    if kind == "response_body":
        return ResponseBody(message.response_body.body, message.response_body.end_of_stream)
    if kind == "request_trailers":
        return RequestTrailers()
    if kind == "response_trailers":
        return ResponseTrailers()
    raise Unreadable(f"message of kind {kind}")


def _request_headers(message: pb.ProcessingRequest) -> RequestHeaders:
    headers = message.request_headers
    mode = response_mode = BodyMode.NONE
    comes_unasked = False
    if message.HasField("protocol_config"):
        config = message.protocol_config
        mode = _MODES.get(config.request_body_mode, BodyMode.NONE)
        response_mode = _MODES.get(config.response_body_mode, BodyMode.NONE)
        comes_unasked = config.send_body_without_waiting_for_header_response
    else:
        # Data planes from before full duplex do not announce the mode; there the body comes buffered.
        mode = BodyMode.BUFFERED
    says_more = message.HasField("metadata_context")
    return RequestHeaders(
        headers=_headers(headers),
        end_of_stream=headers.end_of_stream,
        request_mode=mode,
        body_comes_unasked=comes_unasked,
        response_mode=response_mode,
        subset=_subset(message) if says_more else None,
        tenant=_tenant(message) if says_more else "",
    )


def _response_headers(message: pb.ProcessingRequest) -> ResponseHeaders:
    for header in message.response_headers.headers.headers:
        if header.key == ":status":
            status = _text(header)
            return ResponseHeaders(int(status) if len(status) == 3 and status.isdecimal() else 0, _served(message))
    return ResponseHeaders(0, _served(message))


def _headers(message: pb.HttpHeaders) -> dict[str, str]:
    """By name; of a repeated one the first."""
    headers: dict[str, str] = {}
    for header in message.headers.headers:
        name = header.key.lower()
        if name not in headers:
            # As in `_text`; a request has a dozen of them.
            raw = header.raw_value
            headers[name] = raw.decode("utf-8", "replace") if raw else header.value
    return headers


def _text(header: base_pb2.HeaderValue) -> str:
    """Envoy fills `raw_value`, other data planes `value`."""
    raw: bytes = header.raw_value
    return raw.decode("utf-8", "replace") if raw else header.value


def _subset(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Only what the proxy itself says, in metadata; a client's header of this name means nothing.

    A hint is a restriction: one that is empty, or makes no sense, allows nobody.
    """
    hints = message.metadata_context.filter_metadata
    if _HINT not in hints or SUBSET not in hints[_HINT].fields:
        return None
    value = hints[_HINT].fields[SUBSET]
    if value.WhichOneof("kind") == "list_value":
        names = [item.string_value for item in value.list_value.values]
    else:
        names = value.string_value.split(",")
    return frozenset(endpoint for name in names if (endpoint := canonical(name)) is not None)


def _tenant(message: pb.ProcessingRequest) -> str:
    """As Envoy's own filters have found out (`metadata_options.forwarding_namespaces`): a client cannot write it."""
    metadata = message.metadata_context.filter_metadata
    if _OURS not in metadata or "tenant" not in metadata[_OURS].fields:
        return ""
    return str(metadata[_OURS].fields["tenant"].string_value)


def _served(message: pb.ProcessingRequest) -> str:
    if message.HasField("metadata_context"):
        metadata = message.metadata_context.filter_metadata
        if _LB in metadata and SERVED in metadata[_LB].fields:
            return str(metadata[_LB].fields[SERVED].string_value)
    attributes = message.attributes
    if _ATTRIBUTES in attributes:
        return str(attributes[_ATTRIBUTES].fields["upstream.address"].string_value)
    return ""


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
        fields = message.dynamic_metadata.fields[_LB].struct_value.fields
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

KINDS: Mapping[type[Any], tuple[str, str]] = {
    RequestHeaders: ("received", "request_headers"),
    RequestBody: ("received", "request_body"),
    RequestTrailers: ("received", "request_trailers"),
    ResponseHeaders: ("received", "response_headers"),
    ResponseBody: ("received", "response_body"),
    ResponseTrailers: ("received", "response_trailers"),
    do.SendHeadersContinue: ("sent", "request_headers"),
    do.SendHeadersPick: ("sent", "request_headers"),
    do.SendBodyContinue: ("sent", "request_body"),
    do.SendBodyPick: ("sent", "request_body"),
    do.SendBodyPiece: ("sent", "request_body"),
    do.SendTrailersContinue: ("sent", "request_trailers"),
    do.SendResponseHeadersContinue: ("sent", "response_headers"),
    do.SendResponseBodyContinue: ("sent", "response_body"),
    do.SendResponseBodyPiece: ("sent", "response_body"),
    do.SendResponseTrailersContinue: ("sent", "response_trailers"),
    do.SendRefusal: ("sent", "immediate_response"),
    do.SendExtension: ("sent", "override_message_timeout"),
}
"""What messages are called in Envoy's protocol, by direction."""
