"""What the conversation wants done. `Send...` are messages to Envoy; the rest is for our own side of the stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from picker.extproc.events import Event


@dataclass(frozen=True, slots=True)
class SendHeadersContinue:
    """`request_headers` answered without a pick: it comes with the body (BUFFERED modes)."""


@dataclass(frozen=True, slots=True)
class SendHeadersPick:
    """`request_headers` answered with the pick. Without endpoints it removes the header and leaves Envoy to choose.

    `prefiller` is the endpoint that is to prefill first, "" where that is none. `traceparent` is the header of this
    name that the worker is to get, "" where it is to be left as it is.
    """

    endpoints: tuple[str, ...]
    prefiller: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SendBodyPick:
    """`request_body` answered with the pick (BUFFERED modes), and the body left as it is or replaced."""

    endpoints: tuple[str, ...]
    new_body: bytes | None = field(default=None, repr=False)
    prefiller: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class SendBodyContinue:
    """`request_body` answered (STREAMED, or a piece after the pick), and the piece left as it is or replaced."""

    new_data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class SendBodyPiece:
    """A piece of the request body handed back (FULL_DUPLEX), at most 62,000 bytes."""

    data: bytes = field(repr=False)
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class SendExtension:
    """`override_message_timeout`: the answer to the last message may take so long, in seconds.

    Envoy ignores it beyond its own `max_message_timeout`, which is 0 where it is not set.
    """

    seconds: float


@dataclass(frozen=True, slots=True)
class SendTrailersContinue:
    """`request_trailers` answered."""


@dataclass(frozen=True, slots=True)
class SendResponseHeadersContinue:
    """`response_headers` answered; `header`, if not empty, is added to tell the client which endpoint served it.

    `decision`, if not empty, tells it why.
    """

    header: str = ""
    served: str = ""
    decision: str = ""


@dataclass(frozen=True, slots=True)
class SendResponseBodyContinue:
    """`response_body` answered, body left as it is."""


@dataclass(frozen=True, slots=True)
class SendResponseBodyPiece:
    """A piece of the response body handed back (FULL_DUPLEX), at most 62,000 bytes."""

    data: bytes = field(repr=False)
    end_of_stream: bool


@dataclass(frozen=True, slots=True)
class SendResponseTrailersContinue:
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


@dataclass(frozen=True, slots=True)
class Pick:
    """Choose a worker; the answer comes as `Picked` or `NotPicked`. `is_whole`: nothing of the body is missing.

    `tenant` is whose request it is by the proxy's own metadata, "" where that does not say.
    """

    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=False)
    is_whole: bool = True
    subset: frozenset[str] | None = None
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Tell `DeadlinePassed` at this time. There is one timer; None stops it."""

    at: float | None


@dataclass(frozen=True, slots=True)
class FirstByte:
    """A worker has begun to answer this placement, with this status."""

    placement: Any
    status: int
    served: str


@dataclass(frozen=True, slots=True)
class Answered:
    """The response of this placement has passed whole; `tail` is its end, to read the usage from."""

    placement: Any
    tail: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """This placement is over. Asked for exactly once for each."""

    placement: Any


@dataclass(frozen=True, slots=True)
class Finish:
    """Close our side of the stream: nothing more will be said."""


@dataclass(frozen=True, slots=True)
class Ignored:
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
