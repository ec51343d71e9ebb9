"""Envoy's messages to events. Bytes in, values out; no gRPC."""

from __future__ import annotations

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

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
from picker.extproc.wire.names import LB, SERVED, SUBSET
from picker.fleet.endpoints import canonical

_HINT = "envoy.lb.subset_hint"
_OURS = "picker"
_ATTRIBUTES = "envoy.filters.http.ext_proc"
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
    # Data planes from before full duplex do not announce the modes; there the body comes buffered.
    mode, response_mode, comes_unasked = BodyMode.BUFFERED, BodyMode.NONE, False
    if message.HasField("protocol_config"):
        config = message.protocol_config
        mode = _MODES.get(config.request_body_mode, BodyMode.NONE)
        response_mode = _MODES.get(config.response_body_mode, BodyMode.NONE)
        comes_unasked = config.send_body_without_waiting_for_header_response
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
        if LB in metadata and SERVED in metadata[LB].fields:
            return str(metadata[LB].fields[SERVED].string_value)
    attributes = message.attributes
    if _ATTRIBUTES in attributes:
        return str(attributes[_ATTRIBUTES].fields["upstream.address"].string_value)
    return ""
