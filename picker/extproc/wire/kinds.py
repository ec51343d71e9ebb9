"""Events and actions by the names of Envoy's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picker.extproc import actions as do
from picker.extproc.events import (
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)

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
