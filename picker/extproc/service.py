"""The ext_proc service over grpc.aio: reads messages, lets the conversation decide, performs what it wants done."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Protocol, cast, get_args

import grpc
import structlog

from picker.extproc.actions import Action, Answered, Finish, FirstByte, Ignored, Pick, Release, Send, StartTimer
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import Closed, DeadlinePassed, Event, NotPicked, Picked
from picker.extproc.wire import Unreadable, build, parse

log = structlog.get_logger()

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_SENDS = frozenset(get_args(Send))
_TICK_S = 0.25
"""How late a deadline may be noticed."""
Context = grpc.aio.ServicerContext[bytes, bytes]


class Answers(Protocol):
    """Who makes the picks and keeps the books (`picker.picking.Picker`)."""

    async def pick(self, wanted: Pick) -> Picked | NotPicked: ...  # noqa: D102
    def first_byte(self, placement: Any, status: int, served: str) -> None: ...  # noqa: D102
    def answered(self, placement: Any, tail: bytes) -> None: ...  # noqa: D102
    def release(self, placement: Any) -> None: ...  # noqa: D102


class Counts(Protocol):
    """Who counts (`picker.telemetry.metrics.Metrics`)."""

    def ignored(self, event: str, state: str) -> None: ...  # noqa: D102


class ExtProcService:
    """Serves `ExternalProcessor/Process` on bytes: messages are parsed in `wire`, not by grpcio."""

    def __init__(self, answers: Answers, counts: Counts, settings: Settings, budget: ByteBudget):
        self._answers = answers
        self._counts = counts
        self._settings = settings
        self._budget = budget
        self._open: set[_Stream] = set()
        self._tick: asyncio.TimerHandle | None = None

    @property
    def streams(self) -> int:
        """Open streams, one for each request in flight."""
        return len(self._open)

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """To be added to a server."""
        method = grpc.stream_stream_rpc_method_handler(self._process, None, None)
        return grpc.method_handlers_generic_handler(SERVICE, {"Process": method})

    async def _process(self, _: object, context: Context) -> None:
        stream = _Stream(self._answers, self._counts, Conversation(self._settings, self._budget), context)
        self._open.add(stream)
        if self._tick is None:
            self._wake_late()
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def _wake_late(self) -> None:
        """Looks at all deadlines, again and again: a timer around each read costs more than the rest of a stream."""
        loop = asyncio.get_running_loop()
        for stream in self._open:
            stream.wake_if_late(loop.time())
        self._tick = loop.call_later(_TICK_S, self._wake_late) if self._open else None


class _Stream:
    """One stream: the conversation, the timer, and the order in which events and actions follow one another."""

    def __init__(self, answers: Answers, counts: Counts, conversation: Conversation, context: Context):
        self._answers = answers
        self._counts = counts
        self._conversation = conversation
        self._context = context
        self._now = asyncio.get_running_loop().time
        self._task = asyncio.current_task()
        self._deadline: float | None = None
        self._is_reading = self._is_late = False
        self._finished = False
        self._events: deque[Event] = deque()

    async def run(self) -> None:
        """Until either side has finished. However it ends, the conversation learns that it has."""
        try:
            while not self._finished and (event := await self._next()) is not None:
                await self._handle(event)
        except Unreadable as error:
            log.warning("ext_proc_message_unreadable", error=str(error))
            await self._context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        finally:
            # Nothing to await here: this also runs when the stream was cancelled.
            for action in self._conversation.receive(Closed(), self._now()):
                if isinstance(action, Release):
                    self._answers.release(action.placement)

    def wake_if_late(self, now: float) -> None:
        """Ends a read whose deadline has passed."""
        if self._is_reading and self._task and self._deadline is not None and now >= self._deadline:
            self._deadline = None
            self._is_late = self._task.cancel()

    async def _next(self) -> Event | None:
        self._is_reading = True
        try:
            data = await self._context.read()
        except asyncio.CancelledError:
            # Ours, and nobody else's at the same time?
            if self._is_late and self._task and self._task.uncancel() == 0:
                self._is_late = False
                return DeadlinePassed()
            raise
        finally:
            self._is_reading = False
        # The stubs do not know grpc.aio.EOF.
        return parse(data) if isinstance(data, bytes) else None

    async def _handle(self, event: Event) -> None:
        self._events.append(event)
        while self._events:
            for action in self._conversation.receive(self._events.popleft(), self._now()):
                if type(action) in _SENDS:
                    await self._context.write(build(cast(Send, action)))
                elif isinstance(action, Pick):
                    self._events.append(await self._answers.pick(action))
                else:
                    self._note(action)

    def _note(self, action: Action) -> None:
        match action:
            case StartTimer(at=at):
                self._deadline = at
            case FirstByte(placement=placement, status=status, served=served):
                self._answers.first_byte(placement, status, served)
            case Answered(placement=placement, tail=tail):
                self._answers.answered(placement, tail)
            case Release(placement=placement):
                self._answers.release(placement)
            case Ignored(event=kind, state=state):
                self._counts.ignored(kind.__name__, state)
            case Finish():
                self._finished = True
