"""The ext_proc service: on grpc.aio, and on our own transport. Both let the conversation decide what to say."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from typing import Any

import grpc
import structlog

from picker.extproc.actions import Pick
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Door, Settings
from picker.extproc.direct import DirectStream
from picker.extproc.eager import run_eagerly
from picker.extproc.events import BodyMode, Cut, DeadlinePassed, Event, NotPicked, NotYet, Picked
from picker.extproc.exchange import Answers, Counts, Exchange, Seen
from picker.extproc.wire.building import BUILDERS, build
from picker.extproc.wire.kinds import KINDS
from picker.extproc.wire.parsing import Unreadable, parse
from picker.transport.calls import Call, Handler

log = structlog.get_logger()

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = f"/{SERVICE}/Process"
_TICK_S = 0.25
"""How late a deadline may be noticed."""
Context = grpc.aio.ServicerContext[bytes, bytes]


class ExtProcService:
    """Serves `ExternalProcessor/Process` on bytes: messages are parsed in `wire`, not by grpcio."""

    def __init__(
        self, answers: Answers, counts: Counts, settings: Settings, budget: ByteBudget, door: Door | None = None
    ):
        self._answers = answers
        self._counts = counts
        self._settings = settings
        self._budget = budget
        self._door = door
        self._open: set[_Stream | DirectStream] = set()
        self._tick: asyncio.TimerHandle | None = None
        self.opened = 0
        """Streams since the start."""
        self._seen: Seen = Counter()

    @property
    def streams(self) -> int:
        """Open streams, one for each request in flight."""
        return len(self._open)

    def messages(self) -> dict[tuple[str, ...], float]:
        """Messages since the start, by direction and kind. May be called from any thread."""
        found: dict[tuple[str, ...], float] = {}
        for kind, count in self._seen.copy().items():
            if key := KINDS.get(kind):
                found[key] = found.get(key, 0.0) + count
        return found

    def ended(self) -> dict[tuple[str, ...], float]:
        """Streams that have ended, by the mode in which the request's body came. May be called from any thread."""
        return {(kind.name.lower(),): count for kind, count in self._seen.copy().items() if isinstance(kind, BodyMode)}

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """To be added to grpcio's server."""
        method = grpc.stream_stream_rpc_method_handler(self._process, None, None)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    def open(self, call: Call) -> Handler:
        """To be added to our own server as `METHOD`."""
        stream = DirectStream(self._exchange(), call, time.monotonic, self._open.discard)
        self._note(stream)
        return stream

    def cut(self, placement: object, refusal: NotPicked) -> None:
        """This placement gives way to another, if no response to it has begun; then it is released here and now."""
        for stream in self._open:
            if stream.holds(placement):
                stream.cut(refusal)
                return

    async def _process(self, _: object, context: Context) -> None:
        stream = _Stream(self._exchange(), context)
        self._note(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def _exchange(self) -> Exchange:
        return Exchange(self._answers, self._counts, Conversation(self._settings, self._budget, self._door), self._seen)

    def _note(self, stream: _Stream | DirectStream) -> None:
        self._open.add(stream)
        self.opened += 1
        if self._tick is None:
            self._wake_late()

    def _wake_late(self) -> None:
        """Looks at all deadlines, again and again: a timer around each read costs more than the rest of a stream."""
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        for stream in [stream for stream in self._open if stream.is_late(now)]:
            stream.be_late()
        self._tick = loop.call_later(_TICK_S, self._wake_late) if self._open else None


class _Stream:
    """One stream on grpc.aio: the order in which events and actions follow one another."""

    def __init__(self, exchange: Exchange, context: Context):
        self._exchange = exchange
        self._context = context
        self._now = time.monotonic
        self._task = asyncio.current_task()
        self._is_reading = False
        self._interruption: Event | None = None
        self._events: deque[Event] = deque()

    async def run(self) -> None:
        """Until either side has finished."""
        try:
            while not self._exchange.is_finished and (event := await self._next()) is not None:
                await self._handle(event)
        except Unreadable as error:
            log.warning("ext_proc_message_unreadable", error=str(error))
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            # Nothing to await here: this also runs when the stream was cancelled.
            self._exchange.close(self._now())

    def is_late(self, now: float) -> bool:
        """Whether a read has lasted until the conversation's deadline."""
        return self._is_reading and self._exchange.deadline is not None and now >= self._exchange.deadline

    def be_late(self) -> None:
        """Ends that read."""
        self._exchange.deadline = None
        self._interrupt(DeadlinePassed())

    def holds(self, placement: object) -> bool:
        """Whether this was picked here, and is not over."""
        return self._exchange.conversation.placement is placement

    def cut(self, refusal: NotPicked) -> None:
        """What was picked here gives way."""
        if self._is_reading:
            self._interrupt(Cut(refusal))
        else:
            # Something is being written; then it is this one's turn.
            self._events.append(Cut(refusal))

    def _interrupt(self, event: Event) -> None:
        """Ends a read: this is what it brings."""
        if self._task and self._task.cancel():
            self._interruption = event

    async def _next(self) -> Event | None:
        self._is_reading = True
        try:
            data = await self._context.read()
        except asyncio.CancelledError:
            # Ours, and nobody else's at the same time?
            interruption, self._interruption = self._interruption, None
            if interruption and self._task and self._task.uncancel() == 0:
                return interruption
            raise
        finally:
            self._is_reading = False
        # The stubs do not know grpc.aio.EOF.
        event = parse(data) if isinstance(data, bytes) else None
        self._exchange.seen[type(event)] += 1
        return event

    async def _handle(self, event: Event) -> None:
        self._events.append(event)
        while self._events:
            event = self._events.popleft()
            await self._receive(event)
            if isinstance(event, Picked):
                self._exchange.replied(event)

    async def _receive(self, event: Event) -> None:
        for action in self._exchange.conversation.receive(event, self._now()):
            if (kind := type(action)) in BUILDERS:
                self._exchange.seen[kind] += 1
                await self._context.write(build(action))
            elif isinstance(action, Pick):
                self._events.append(await self._pick(action))
            else:
                self._exchange.note(action)

    async def _pick(self, wanted: Pick) -> Picked | NotPicked:
        answer = run_eagerly(self._exchange.answers.pick(wanted))
        if not isinstance(answer, asyncio.Task):
            return answer
        try:
            await self._receive(NotYet())
            return await answer
        except BaseException:
            answer.cancel()
            # It may have been made in this very moment; then somebody has to release it.
            answer.add_done_callback(self._picked_too_late)
            raise

    def _picked_too_late(self, answer: asyncio.Task[Picked | NotPicked]) -> None:
        if not answer.cancelled() and not answer.exception():
            for action in self._exchange.conversation.receive(answer.result(), self._now()):
                self._exchange.note(action)
