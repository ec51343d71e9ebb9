"""The conversation as a state machine: events in, actions out, no I/O.

What Envoy does, by the body mode that it announces in the first message:

* BUFFERED: headers; it waits for our answer; then the whole body in one message; it waits again. The pick goes with the
  answer to the body. BUFFERED_PARTIAL is the same, with a body that may be cut off.
* FULL_DUPLEX: headers and body pieces come as they arrive, ended by an end-of-stream flag or by trailers. Changes of
  headers in the answer to a body are ignored, so the answer to the headers is held until the body is there, and then
  the body is handed back in pieces: Envoy forwards only what we return.
* STREAMED: like FULL_DUPLEX for us if Envoy sends the body unasked. If it does not, there is no body before the headers
  are answered, and the pick is made on the headers alone.
* NONE, no body (end of stream with the headers), an upgrade or CONNECT: the pick is made on the headers at once.

The rules that hold in every order of events (`tests/protocol` enumerates them):

* A request is answered once: picked, or refused. Envoy also takes a refusal after the pick, as long as it has no answer
  from us to the response's headers: that is how a request is cut (`Cut`).
* Every placement is released once, also one that arrives after the stream has ended.
* In FULL_DUPLEX the body's bytes that go out are those that came in.
* A response phase may begin before the request phase is over: Envoy answers 413 or a timeout by itself.

`self.state` is assigned in `receive` and nowhere else; what the table does not list is `Ignored`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from picker.extproc.actions import (
    Action,
    Answered,
    Finish,
    FirstByte,
    Ignored,
    Pick,
    Release,
    Send,
    SendBodyContinue,
    SendBodyPick,
    SendBodyPiece,
    SendExtension,
    SendHeadersContinue,
    SendHeadersPick,
    SendRefusal,
    SendResponseBodyContinue,
    SendResponseBodyPiece,
    SendResponseHeadersContinue,
    SendResponseTrailersContinue,
    SendTrailersContinue,
    StartTimer,
)
from picker.extproc.budget import ByteBudget
from picker.extproc.events import (
    BodyMode,
    Closed,
    Cut,
    DeadlinePassed,
    Event,
    NoRoom,
    NotPicked,
    NotYet,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.extproc.pieces import cut, joined, replaced
from picker.requests.usage import TAIL_BYTES

Door = Callable[[Mapping[str, str], str], NotPicked | None]
"""Refuses a request by its headers, and its tenant in the proxy's metadata, before its body has come."""


class State(enum.Enum):
    """What is expected next."""

    # Members are one of a kind; Enum's own hash runs Python code, a dozen times a request.
    __hash__ = object.__hash__

    HEADERS = "the request's headers"
    BODY = "more of the request's body"
    PICK = "the answer to a Pick"
    RESPONSE = "the response, or the end"
    ENDED = "nothing"


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of a conversation: until the request's body is there, and until all is over.

    `longest_pick_s`: what Envoy is asked to wait for a pick that is not made at once; 0 asks for nothing.
    `reveal_header`: the response header, if any, in which the client is told who served it.
    """

    body_timeout_s: float = 30.0
    exchange_timeout_s: float = 3600.0
    max_body_bytes: int = 64 << 20
    longest_pick_s: float = 0.0
    reveal_header: str = ""


class Conversation:
    """One ext_proc stream. `receive` is the only way in."""

    __slots__ = (
        "_asked_on_headers", "_began_at", "_body_is_over", "_budget", "_door", "_has_begun", "_headers", "_held",
        "_is_unfinished", "_is_whole", "_mode", "_pieces", "_reason", "_response_mode", "_settings", "_subset", "_tail",
        "_tenant", "_trailers", "placement", "refusal", "state",
    )  # fmt: skip

    def __init__(self, settings: Settings, budget: ByteBudget, door: Door | None = None):
        self.state = State.HEADERS
        self._settings = settings
        self._door = door
        self._budget = budget
        self._mode = self._response_mode = BodyMode.NONE
        self._headers: Mapping[str, str] = {}
        self._subset: frozenset[str] | None = None
        self._tenant = ""
        self._began_at = 0.0
        self._asked_on_headers = self._body_is_over = False
        self._pieces: list[RequestBody] = []
        self._held = 0
        self._is_whole = True
        self._trailers = False
        self._has_begun = False
        self.placement: Any = None
        """What was picked, until it is released."""
        self._reason = ""
        self._tail = b""
        self._is_unfinished = False
        self.refusal = ""
        """Why the conversation itself has refused the request, before anybody was asked."""

    def __repr__(self) -> str:
        return f"<Conversation {self.state.name} {self._mode.name} {self._held} bytes held>"

    @property
    def mode(self) -> BodyMode:
        """In which the request's body comes."""
        return self._mode

    def receive(self, event: Event, now: float) -> list[Action]:
        """What to do about an event, in this order. Never raises for anything that Envoy can send."""
        row = TRANSITIONS.get((self.state, type(event)))
        if row is None:
            return [Ignored(type(event), self.state.name)]
        actions, state = row.step(self, event, now)
        assert state in row.leads_to, (self.state, event, state)
        self.state = state
        return actions

    # The request.

    def _on_headers(self, event: RequestHeaders, now: float) -> _Result:
        self._headers, self._subset, self._tenant, self._began_at = event.headers, event.subset, event.tenant, now
        self._mode, self._response_mode = event.request_mode, event.response_mode
        self._body_is_over = event.end_of_stream
        if not self._will_wait_for_body(event):
            self._asked_on_headers = True
            return self._ask(b"")
        if self._door and (refusal := self._door(event.headers, event.tenant)):
            return self._on_not_picked(refusal, now)
        timer = StartTimer(now + self._settings.body_timeout_s)
        if self._mode in _BUFFERED:
            return [timer, SendHeadersContinue()], State.BODY
        return [timer], State.BODY

    def _will_wait_for_body(self, event: RequestHeaders) -> bool:
        if event.end_of_stream or self._mode is BodyMode.NONE or _is_upgrade(event.headers):
            return False
        return self._mode is not BodyMode.STREAMED or event.body_comes_unasked

    def _on_body(self, event: RequestBody, now: float) -> _Result:
        if refusal := self._hold(event):
            return refusal
        if not event.end_of_stream and self._mode not in _BUFFERED:
            return [], State.BODY
        # A whole body that trailers follow does not end the stream.
        self._is_whole = event.end_of_stream or self._mode is BodyMode.BUFFERED
        return self._ask_with_body()

    def _hold(self, event: RequestBody) -> _Result | None:
        size = len(event.data)
        if self._held + size > self._settings.max_body_bytes:
            return self._refuse_itself(413, "body-too-large", "The request body is too large.")
        if not self._budget.take(size):
            return self._refuse_for_room()
        self._held += size
        self._pieces.append(event)
        return None

    def _on_no_room(self, event: NoRoom, now: float) -> _Result:
        return self._refuse_for_room()

    def _refuse_for_room(self) -> _Result:
        return self._refuse_itself(429, "picker-busy", "Too many request bytes are waiting. Please try again later.", 1)

    def _on_trailers(self, event: RequestTrailers, now: float) -> _Result:
        self._trailers = True
        return self._ask_with_body()

    def _on_late_body(self, event: DeadlinePassed, now: float) -> _Result:
        return self._refuse_itself(408, "body-late", "The request body did not arrive in time.")

    def _ask_with_body(self) -> _Result:
        actions, state = self._ask(joined(self._pieces))
        return [StartTimer(None), *actions], state

    def _ask(self, body: bytes) -> _Result:
        pick = Pick(self._headers, body, self._is_whole, self._subset, self._tenant, self._began_at)
        return [pick], State.PICK

    def _on_not_yet(self, event: NotYet, now: float) -> _Result:
        # Envoy 1.40 keeps no message timeout in full duplex.
        is_timed = self._mode is not BodyMode.FULL_DUPLEX and self._settings.longest_pick_s
        return ([SendExtension(self._settings.longest_pick_s)] if is_timed else []), State.PICK

    def _on_body_while_picking(self, event: RequestBody, now: float) -> _Result:
        """The first bytes of an upgraded connection, or body after its end, which Envoy 1.35 to 1.37 can repeat."""
        if not self._is_wanted(event):
            return [Ignored(RequestBody, self.state.name)], State.PICK
        return self._hold(event) or ([], State.PICK)

    def _is_wanted(self, event: RequestBody) -> bool:
        """Whether a piece that comes after the question still belongs to the body."""
        is_wanted = self._asked_on_headers and not self._body_is_over
        self._body_is_over = self._body_is_over or event.end_of_stream
        return is_wanted

    def _on_trailers_while_picking(self, event: RequestTrailers, now: float) -> _Result:
        self._trailers = self._body_is_over = True
        return [], State.PICK

    # The answer.

    def _on_picked(self, event: Picked, now: float) -> _Result:
        self.placement, self._reason = event.placement, event.reason
        # A proxy that never says that it is over must not keep the books open for ever.
        timer = StartTimer(now + self._settings.exchange_timeout_s)
        return [timer, *self._answer(event)], State.RESPONSE

    def _answer(self, picked: Picked) -> Iterator[Send]:
        pieces = self._drop_body()
        if self._mode in _BUFFERED and not self._asked_on_headers:
            yield SendBodyPick(picked.endpoints, picked.new_body, picked.prefiller, picked.traceparent)
        else:
            yield SendHeadersPick(picked.endpoints, picked.prefiller, picked.traceparent)
            yield from self._pass_on(replaced(pieces, picked.new_body))
        if self._trailers:
            yield SendTrailersContinue()

    def _pass_on(self, pieces: list[RequestBody]) -> Iterator[Send]:
        if self._mode is not BodyMode.FULL_DUPLEX:
            yield from (SendBodyContinue(piece.data if piece.is_new else None) for piece in pieces)
        elif pieces:
            for data, is_last in cut(joined(pieces)):
                yield SendBodyPiece(data, is_last and pieces[-1].end_of_stream)

    def _on_not_picked(self, event: NotPicked, now: float) -> _Result:
        return self._refuse(event.status, event.reason, event.message, event.retry_after_s)

    def _refuse_itself(self, status: int, reason: str, message: str, retry_after_s: int = 0) -> _Result:
        self.refusal = reason
        return self._refuse(status, reason, message, retry_after_s)

    def _refuse(self, status: int, reason: str, message: str, retry_after_s: int = 0) -> _Result:
        self._drop_body()
        refusal = SendRefusal(status, reason, message, self._headers, retry_after_s)
        return [StartTimer(None), refusal, Finish()], State.ENDED

    def _drop_body(self) -> list[RequestBody]:
        pieces, self._pieces = self._pieces, []
        self._budget.give_back(self._held)
        self._held = 0
        return pieces

    # After it.

    def _on_more_body(self, event: RequestBody, now: float) -> _Result:
        """Body after a pick on the headers alone; anything else is body after its end."""
        if not self._is_wanted(event):
            return [Ignored(RequestBody, self.state.name)], State.RESPONSE
        return list(self._pass_on([event])), State.RESPONSE

    def _on_more_trailers(self, event: RequestTrailers, now: float) -> _Result:
        self._body_is_over = True
        return [SendTrailersContinue()], State.RESPONSE

    def _on_response_headers(self, event: ResponseHeaders, now: float) -> _Result:
        actions: list[Action] = []
        self._has_begun = True
        if self.placement is not None:
            actions.append(FirstByte(self.placement, event.status, event.served))
        header = self._settings.reveal_header if event.served else ""
        actions.append(SendResponseHeadersContinue(header, event.served, self._reason))
        return actions, State.RESPONSE

    def _on_early_response(self, event: ResponseHeaders, now: float) -> _Result:
        """Envoy has answered by itself; a pick that still comes is released at once."""
        self._drop_body()
        return [StartTimer(None), SendResponseHeadersContinue()], State.RESPONSE

    def _on_response_body(self, event: ResponseBody, now: float) -> _Result:
        self._tail = (self._tail + event.data)[-TAIL_BYTES:]
        self._is_unfinished = not event.end_of_stream
        actions: list[Action] = self._answered() if event.end_of_stream else []
        if self._response_mode is not BodyMode.FULL_DUPLEX:
            actions.append(SendResponseBodyContinue())
        else:
            pieces = cut(event.data)
            actions += (SendResponseBodyPiece(data, is_last and event.end_of_stream) for data, is_last in pieces)
        return actions, State.RESPONSE

    def _on_response_trailers(self, event: ResponseTrailers, now: float) -> _Result:
        self._is_unfinished = False
        return [*self._answered(), SendResponseTrailersContinue()], State.RESPONSE

    def _answered(self) -> list[Action]:
        # To be told before the last message goes out: on that Envoy ends the stream, and our side of it is cancelled.
        tail, self._tail = self._tail, b""
        return [Answered(self.placement, tail)] if tail and self.placement is not None else []

    def _on_closed(self, event: Closed, now: float) -> _Result:
        self._drop_body()
        return [StartTimer(None), *self._release(self._is_unfinished)], State.ENDED

    def _on_cut(self, event: Cut, now: float) -> _Result:
        if self.placement is None or self._has_begun:
            return [Ignored(Cut, self.state.name)], State.RESPONSE
        return [*self._release(), *self._on_not_picked(event.refusal, now)[0]], State.ENDED

    def _on_endless_exchange(self, event: DeadlinePassed, now: float) -> _Result:
        # To close the stream in the response phase is no error for Envoy: it goes on without us.
        return [*self._release(), Finish()], State.ENDED

    def _release(self, is_unfinished: bool = False) -> list[Action]:
        placement, self.placement = self.placement, None
        return [] if placement is None else [Release(placement, is_unfinished)]

    def _on_pick_too_late(self, event: Picked, now: float) -> _Result:
        return ([] if event.placement is None else [Release(event.placement)]), self.state


_BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)
_Result = tuple[list[Action], State]


def _is_upgrade(headers: Mapping[str, str]) -> bool:
    """Whether no body that ends will come: holding the headers of an upgraded connection would hang it.

    Java's HTTP client offers an upgrade to h2c on ordinary POSTs, which come with a body.
    """
    if headers.get(":method") == "CONNECT":
        return True
    return headers.get("upgrade", "h2c").lower() != "h2c" and "content-length" not in headers


@dataclass(frozen=True, slots=True)
class Row:
    """What to do in a state with an event, and the states that it may lead to."""

    step: Callable[[Conversation, Any, float], _Result]
    leads_to: frozenset[State]


E = TypeVar("E", bound=Event)


def _on(
    state: State, kind: type[E], step: Callable[[Conversation, E, float], _Result], *leads_to: State
) -> tuple[tuple[State, type[Any]], Row]:
    """One row; the helper is generic so that a handler of another event's type does not type-check."""
    return (state, kind), Row(step, frozenset(leads_to))


S, C = State, Conversation
TRANSITIONS: Mapping[tuple[State, type[Event]], Row] = dict(
    [
        _on(S.HEADERS, RequestHeaders, C._on_headers, S.BODY, S.PICK, S.ENDED),
        _on(S.HEADERS, ResponseHeaders, C._on_early_response, S.RESPONSE),
        _on(S.HEADERS, Closed, C._on_closed, S.ENDED),
        _on(S.BODY, RequestBody, C._on_body, S.BODY, S.PICK, S.ENDED),
        _on(S.BODY, RequestTrailers, C._on_trailers, S.PICK),
        _on(S.BODY, NoRoom, C._on_no_room, S.ENDED),
        _on(S.BODY, DeadlinePassed, C._on_late_body, S.ENDED),
        _on(S.BODY, ResponseHeaders, C._on_early_response, S.RESPONSE),
        _on(S.BODY, Closed, C._on_closed, S.ENDED),
        _on(S.PICK, RequestBody, C._on_body_while_picking, S.PICK, S.ENDED),
        _on(S.PICK, NoRoom, C._on_no_room, S.ENDED),
        _on(S.PICK, RequestTrailers, C._on_trailers_while_picking, S.PICK),
        _on(S.PICK, NotYet, C._on_not_yet, S.PICK),
        _on(S.PICK, Picked, C._on_picked, S.RESPONSE),
        _on(S.PICK, NotPicked, C._on_not_picked, S.ENDED),
        _on(S.PICK, ResponseHeaders, C._on_early_response, S.RESPONSE),
        _on(S.PICK, Closed, C._on_closed, S.ENDED),
        _on(S.RESPONSE, Picked, C._on_pick_too_late, S.RESPONSE),
        _on(S.RESPONSE, Cut, C._on_cut, S.RESPONSE, S.ENDED),
        _on(S.RESPONSE, RequestBody, C._on_more_body, S.RESPONSE),
        _on(S.RESPONSE, RequestTrailers, C._on_more_trailers, S.RESPONSE),
        _on(S.RESPONSE, ResponseHeaders, C._on_response_headers, S.RESPONSE),
        _on(S.RESPONSE, ResponseBody, C._on_response_body, S.RESPONSE),
        _on(S.RESPONSE, ResponseTrailers, C._on_response_trailers, S.RESPONSE),
        _on(S.RESPONSE, DeadlinePassed, C._on_endless_exchange, S.ENDED),
        _on(S.RESPONSE, Closed, C._on_closed, S.ENDED),
        _on(S.ENDED, Picked, C._on_pick_too_late, S.ENDED),
    ]
)
