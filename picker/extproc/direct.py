"""One ext_proc stream on our own transport: no task, no queue; the answer goes out as soon as the question is read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from picker.extproc.actions import Pick
from picker.extproc.eager import run_eagerly
from picker.extproc.events import Cut, DeadlinePassed, Event, NoRoom, NotPicked, NotYet, Picked
from picker.extproc.exchange import Exchange
from picker.extproc.wire.building import BUILDERS, build
from picker.extproc.wire.parsing import Unreadable, parse
from picker.transport.calls import Call
from picker.transport.errors import Status

log = structlog.get_logger()


class DirectStream:
    """A handler for the transport (`picker.transport.calls.Handler`). `on_end` is called once."""

    __slots__ = ("_call", "_exchange", "_is_half_closed", "_is_over", "_now", "_on_end", "_picking")

    def __init__(
        self, exchange: Exchange, call: Call, now: Callable[[], float], on_end: Callable[[DirectStream], None]
    ):
        self._exchange = exchange
        self._call = call
        self._now = now
        self._on_end = on_end
        self._picking: asyncio.Task[Picked | NotPicked] | None = None
        self._is_half_closed = self._is_over = False

    def message(self, data: bytes) -> None:
        """Envoy has said something."""
        try:
            event = parse(data)
        except Unreadable as error:
            log.warning("ext_proc_message_unreadable", error=str(error))
            return self._finish(Status.INVALID_ARGUMENT, "not a ProcessingRequest")
        self._exchange.seen[type(event)] += 1
        self._handle(event)

    def half_closed(self) -> None:
        """Envoy has said all; a pick that is being made is still answered."""
        self._is_half_closed = True
        if self._picking is None:
            self._finish()

    def no_room(self) -> None:
        """Some of what Envoy has sent is lost."""
        self._handle(NoRoom())
        # Where it is too late to refuse the request, an error is better than a body with a hole.
        self._finish(Status.RESOURCE_EXHAUSTED, "no room for what was sent")

    def ended(self) -> None:
        """The stream is gone."""
        if self._is_over:
            return
        self._is_over = True
        if self._picking is not None:
            self._picking.cancel()
        self._exchange.close(self._now())
        self._on_end(self)

    def is_late(self, now: float) -> bool:
        """Whether the conversation's timer has run out."""
        return self._exchange.deadline is not None and now >= self._exchange.deadline

    def be_late(self) -> None:
        """Tells the conversation so."""
        self._exchange.deadline = None
        self._handle(DeadlinePassed())

    def holds(self, placement: object) -> bool:
        """Whether this was picked here, and is not over."""
        return self._exchange.conversation.placement is placement

    def cut(self, refusal: NotPicked) -> None:
        """What was picked here gives way."""
        self._handle(Cut(refusal))

    def _handle(self, event: Event) -> None:
        answer: Picked | NotPicked | None = None
        for action in self._exchange.conversation.receive(event, self._now()):
            if (kind := type(action)) in BUILDERS:
                self._exchange.seen[kind] += 1
                self._call.send(build(action))
            elif isinstance(action, Pick):
                answer = self._pick(action)
            else:
                self._exchange.note(action)
        if type(event) is Picked:
            self._exchange.replied(event)
        if answer is not None:
            self._handle(answer)
        elif self._exchange.is_finished:
            self._finish()

    def _pick(self, wanted: Pick) -> Picked | NotPicked | None:
        """The answer; None where it comes later."""
        answer = run_eagerly(self._exchange.answers.pick(wanted))
        if not isinstance(answer, asyncio.Task):
            return answer
        self._picking = answer
        answer.add_done_callback(self._picked)
        self._handle(NotYet())
        return None

    def _picked(self, picking: asyncio.Task[Picked | NotPicked]) -> None:
        self._picking = None
        # Cancelled where the stream ended first.
        if picking.cancelled():
            return
        self._handle(picking.result())
        if self._is_half_closed:
            self._finish()

    def _finish(self, status: Status = Status.OK, text: str = "") -> None:
        if not self._is_over:
            self._call.finish(status, text)
            self.ended()
