"""What the conversation wants done. `Send...` are messages to Envoy; the rest is for our own side of the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from picker.extproc.events import Event
from picker.extproc.message import Message


class SendHeadersContinue(Message, frozen=True):
    """`request_headers` answered without a pick: it comes with the body (BUFFERED modes)."""


class SendHeadersPick(Message, frozen=True):
    """`request_headers` answered with the pick. Without endpoints it removes the header and leaves Envoy to choose.

    `prefiller` is the endpoint that is to prefill first, "" where that is none. `traceparent` is the header of this
    name that the worker is to get, "" where it is to be left as it is.
    """

    endpoints: tuple[str, ...]
    prefiller: str = ""
    traceparent: str = ""


class SendBodyPick(Message, frozen=True):
    """`request_body` answered with the pick (BUFFERED modes), and the body left as it is or replaced."""

    endpoints: tuple[str, ...]
    new_body: bytes | None = None
    prefiller: str = ""
    traceparent: str = ""


class SendBodyContinue(Message, frozen=True):
    """`request_body` answered (STREAMED, or a piece after the pick), and the piece left as it is or replaced."""

    new_data: bytes | None = None


class SendBodyPiece(Message, frozen=True):
    """A piece of the request body handed back (FULL_DUPLEX), at most 62,000 bytes."""

    data: bytes
    end_of_stream: bool


class SendExtension(Message, frozen=True):
    """`override_message_timeout`: the answer to the last message may take so long, in seconds.

    Envoy ignores it beyond its own `max_message_timeout`, which is 0 where it is not set.
    """

    seconds: float


class SendTrailersContinue(Message, frozen=True):
    """`request_trailers` answered."""


class SendResponseHeadersContinue(Message, frozen=True):
    """`response_headers` answered; `header`, if not empty, is added to tell the client which endpoint served it.

    `decision`, if not empty, tells it why.
    """

    header: str = ""
    served: str = ""
    decision: str = ""


class SendResponseBodyContinue(Message, frozen=True):
    """`response_body` answered, body left as it is."""


class SendResponseBodyPiece(Message, frozen=True):
    """A piece of the response body handed back (FULL_DUPLEX), at most 62,000 bytes."""

    data: bytes
    end_of_stream: bool


class SendResponseTrailersContinue(Message, frozen=True):
    """`response_trailers` answered."""


@dataclass(frozen=True, slots=True)
class SendRefusal:
    """`immediate_response`: the client gets this status and an error body, and no worker sees the request.

    `headers` are the request's: they tell in which dialect the client expects the error. `retry_after_s` is 0 where the
    client is not told when to come back.
    """

    status: int
    reason: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    retry_after_s: int = 0


class Pick(Message, frozen=True):
    """Choose a worker; the answer comes as `Picked` or `NotPicked`. `is_whole`: nothing of the body is missing.

    `tenant` is whose request it is by the proxy's own metadata, "" where that does not say. `began_at` is when its
    headers came.
    """

    headers: Mapping[str, str]
    body: bytes
    is_whole: bool = True
    subset: frozenset[str] | None = None
    tenant: str = ""
    began_at: float = 0.0


class StartTimer(Message, frozen=True):
    """Tell `DeadlinePassed` at this time. There is one timer; None stops it."""

    at: float | None


class FirstByte(Message, frozen=True):
    """A worker has begun to answer this placement, with this status."""

    placement: Any
    status: int
    served: str


class Answered(Message, frozen=True):
    """The response of this placement has passed whole; `tail` is its end, to read the usage from."""

    placement: Any
    tail: bytes


class Release(Message, frozen=True):
    """This placement is over. Asked for exactly once for each.

    `is_unfinished`: its response has begun to pass and has not come to its end.
    """

    placement: Any
    is_unfinished: bool = False


class Finish(Message, frozen=True):
    """Close our side of the stream: nothing more will be said."""


class Ignored(Message, frozen=True):
    """An event that means nothing in this state. A proxy may send anything; we count it."""

    event: type[Event]
    state: str


Send = (
    SendHeadersContinue
    | SendHeadersPick
    | SendBodyPick
    | SendBodyContinue
    | SendBodyPiece
    | SendExtension
    | SendTrailersContinue
    | SendResponseHeadersContinue
    | SendResponseBodyContinue
    | SendResponseBodyPiece
    | SendResponseTrailersContinue
    | SendRefusal
)
Action = Send | Pick | StartTimer | FirstByte | Answered | Release | Finish | Ignored
