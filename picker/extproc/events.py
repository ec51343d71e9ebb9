"""What Envoy, or our own side of the stream, tells the conversation."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from picker.extproc.message import Message


class BodyMode(enum.Enum):
    """How Envoy sends a body, and so the form that it expects in return (`ProcessingMode.BodySendMode`)."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX = 4


class RequestHeaders(Message, frozen=True):
    """`ProcessingRequest.request_headers`, with the modes that only a stream's first message announces.

    Names are in lower case; of a repeated header the first value counts. `subset` holds the endpoints that the proxy
    allows (`envoy.lb.subset_hint`), None where it gives no hint. `body_comes_unasked`: in STREAMED mode, Envoy sends
    the body without waiting for the answer to the headers. `tenant` is whose request it is by the proxy's own metadata,
    "" where that does not say.
    """

    headers: Mapping[str, str]
    end_of_stream: bool = False
    request_mode: BodyMode = BodyMode.BUFFERED
    body_comes_unasked: bool = False
    response_mode: BodyMode = BodyMode.NONE
    subset: frozenset[str] | None = None
    tenant: str = ""


class RequestBody(Message, frozen=True):
    """`ProcessingRequest.request_body`: all of it (BUFFERED) or a piece (up to 1 MiB). `is_new`: replaced by us."""

    data: bytes = b""
    end_of_stream: bool = True
    is_new: bool = False


class RequestTrailers(Message, frozen=True):
    """`ProcessingRequest.request_trailers`. In the streamed modes they end a body that had no last piece."""


class ResponseHeaders(Message, frozen=True):
    """`ProcessingRequest.response_headers`. `status` is `:status`, 0 where it is absent.

    `served` is the endpoint that answered, which after a retry is not the one picked first; "" where the proxy does not
    say (attribute `upstream.address`, or metadata `x-gateway-destination-endpoint-served`).
    """

    status: int = 0
    served: str = ""


class ResponseBody(Message, frozen=True):
    """`ProcessingRequest.response_body`."""

    data: bytes = b""
    end_of_stream: bool = True


class ResponseTrailers(Message, frozen=True):
    """`ProcessingRequest.response_trailers`."""


class Picked(Message, frozen=True):
    """The answer to a `Pick`. Without endpoints the proxy chooses for itself: we know no better.

    `prefiller` is the endpoint that is to compute the prompt before the first of `endpoints` answers it.
    `reason` is what the client is to be told of the decision, nothing as a rule. `traceparent` takes the place of the
    request's header of this name, where the decision is part of a trace.
    `placement` is what `Release` gives back; the conversation does not look into it. `new_body` takes the place of the
    request's body, where a rule rewrites the model's name in it.
    """

    endpoints: tuple[str, ...]
    placement: Any = None
    new_body: bytes | None = None
    prefiller: str = ""
    reason: str = ""
    traceparent: str = ""


class NotPicked(Message, frozen=True):
    """The other answer to a `Pick`: nobody may serve this request.

    `retry_after_s`: when the client is told to come back, in whole seconds; 0 where it is not told.
    """

    status: int
    reason: str
    message: str
    retry_after_s: int = 0


class Cut(Message, frozen=True):
    """A request that was picked for gives way to another: it is refused after all, if no response has begun."""

    refusal: NotPicked


class NotYet(Message, frozen=True):
    """The answer to a `Pick` will take a while."""


class DeadlinePassed(Message, frozen=True):
    """The time that `StartTimer` asked for has come."""


class NoRoom(Message, frozen=True):
    """Envoy is sending more than can be held, and some of it is lost."""


class Closed(Message, frozen=True):
    """The stream has ended, however: half-close, reset and a lost connection are all normal ends."""


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
    | Picked
    | NotPicked
    | Cut
    | NotYet
    | DeadlinePassed
    | NoRoom
    | Closed
)
