"""The streams of one connection: what comes on them, how they are answered, how they end (RFC 9113 section 5.1).

What is wrong with one stream raises StreamFault, what is wrong with the connection ConnectionFault.
"""

from __future__ import annotations

from collections.abc import Iterable

from picker.transport import frames, headers
from picker.transport.blocks import Block
from picker.transport.errors import CallFault, ConnectionFault, ErrorCode, Reason, Status, StreamFault, protocol_error
from picker.transport.events import Ended, Event, HalfClosed, Misbehaved, NoRoom, Opened, Received
from picker.transport.floods import FloodGuard
from picker.transport.frames import END_STREAM, PADDED
from picker.transport.headers import HeaderReader
from picker.transport.limits import Limits
from picker.transport.messages import Assembler
from picker.transport.outbox import Budget, Outbox
from picker.transport.streams import Stream
from picker.transport.windows import CONNECTION_WINDOW, ReceiveWindow


class OpenStreams:
    """Those that are not over, by their numbers."""

    def __init__(self, limits: Limits, budget: Budget, outbox: Outbox, floods: FloodGuard):
        self.by_id: dict[int, Stream] = {}
        self.last_id = 0
        """Of those that have begun."""
        self.takes_no_more = False
        """New ones are turned down."""
        self.events: list[Event] = []
        """What has happened, to be told."""
        self.headers = HeaderReader(limits.max_header_bytes)
        self._limits = limits
        self._budget = budget
        self._outbox = outbox
        self._floods = floods
        self.received = 0
        """Bytes of data that `count_received` has not counted yet."""
        self._window = ReceiveWindow(CONNECTION_WINDOW)

    def __repr__(self) -> str:
        return f"<OpenStreams: {len(self.by_id)}{', no more' if self.takes_no_more else ''}>"

    def take_events(self) -> list[Event]:
        """What has happened since the last call."""
        events, self.events = self.events, []
        return events

    def find(self, stream_id: int) -> Stream | None:
        """None where it has ended. Raises ConnectionFault where it never began."""
        stream = self.by_id.get(stream_id)
        if stream is None and (stream_id > self.last_id or not stream_id & 1) and not self.takes_no_more:
            raise protocol_error()
        return stream

    # What comes in.

    def on_block(self, block: Block) -> None:
        """All headers of a new stream, or the trailers of an open one."""
        if block.stream_id > self.last_id:
            return self._begin(*block)
        # Trailers; gRPC's clients send none.
        self.headers.skip(block.data)
        stream = self.find(block.stream_id)
        if stream is not None:
            if not block.ends_stream or stream.is_half_closed:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
            self._half_close(stream)

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        """A DATA frame."""
        size = len(payload)
        self.received += size
        if not size and not flags & END_STREAM:
            self._floods.control_frame()
        stream = self.by_id.get(stream_id) or self.find(stream_id)
        # What was on its way when the stream ended is dropped.
        if stream is None:
            return
        if stream.is_half_closed:
            raise StreamFault(ErrorCode.STREAM_CLOSED, Reason.PROTOCOL)
        increment = stream.window.take(size)
        if increment < 0:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        if size and stream.assembler is not None and not stream.is_finished:
            self._read(stream, stream.assembler, frames.unpadded(flags, payload) if flags & PADDED else payload)
        if flags & END_STREAM:
            self._half_close(stream)
        elif increment:
            self._outbox.control(frames.window_update(stream_id, increment))

    def on_reset(self, stream_id: int) -> None:
        """A RST_STREAM frame."""
        stream = self.find(stream_id)
        if stream is None:
            return self._floods.late_reset()
        is_early = not stream.is_answered
        self._drop(stream)
        if is_early:
            self._floods.early_reset()

    def count_received(self) -> None:
        """To be called after some frames: all data counts for the connection's window, whatever stream it was for."""
        increment = self._window.take(self.received)
        self.received = 0
        if increment < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        if increment:
            self._outbox.control(frames.window_update(0, increment))

    def _begin(self, stream_id: int, ends_stream: bool, block: bytes) -> None:
        if self.takes_no_more:
            # The peer knows, or will know, that this stream is for somebody else.
            return self.headers.skip(block)
        self.last_id = stream_id
        head = self.headers.read(block)
        if len(self.by_id) >= self._limits.max_streams:
            raise StreamFault(ErrorCode.REFUSED_STREAM, Reason.TOO_MANY_STREAMS)
        window = ReceiveWindow(self._limits.stream_window_bytes)
        assembler = Assembler(self._limits.max_message_bytes)
        stream = self.by_id[stream_id] = Stream(stream_id, self._outbox.initial_window, window, assembler)
        stream.is_half_closed = ends_stream
        if head.http_status != 200:
            return self._end(stream, headers.http_refusal(head.http_status))
        if head.is_badly_timed:
            return self.finish(stream, Status.INTERNAL, "grpc-timeout makes no sense")
        self.events.append(Opened(stream, head))
        if ends_stream:
            self.events.append(HalfClosed(stream))

    def _read(self, stream: Stream, assembler: Assembler, data: bytes) -> None:
        try:
            for message in assembler.feed(data):
                self.events.append(Received(stream, message))
            if assembler.held != stream.held:
                self._account(stream, assembler.held)
        except CallFault as fault:
            self.events += (Misbehaved(fault.reason), Ended(stream))
            self.finish(stream, fault.status, fault.text)

    def _account(self, stream: Stream, held: int) -> None:
        """What is held of an unfinished message counts like what is held of a request."""
        more = held - stream.held
        if more < 0:
            self._budget.give_back(-more)
        elif not self._budget.take(more):
            self.events += (Misbehaved(Reason.NO_ROOM), NoRoom(stream))
            self._budget.give_back(stream.held)
            stream.assembler, held = None, 0
        stream.held = held

    def _half_close(self, stream: Stream) -> None:
        if stream.held:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.MESSAGE_CUT_OFF)
        stream.is_half_closed = True
        if not stream.is_finished:
            self.events.append(HalfClosed(stream))

    # What goes out.

    def send(self, stream: Stream, message: bytes) -> None:
        """Answers with one message; where that can be neither sent nor kept, the stream is reset."""
        if not stream.is_finished and not self._outbox.message(stream, message):
            self.events.append(Misbehaved(Reason.NO_ROOM))
            self.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

    def finish(self, stream: Stream, status: int = Status.OK, text: str = "") -> None:
        """Ends a call. What was sent before still goes out first."""
        make = headers.trailers if stream.is_answered else headers.trailers_only
        self._end(stream, make(status, text))

    def hold(self, stream: Stream) -> None:
        """The peer is not to send more on this stream than it may already."""
        stream.window.shut()

    def resume(self, stream: Stream) -> None:
        """It may send again."""
        increment = stream.window.open()
        if increment and not (stream.is_half_closed or stream.is_finished):
            self._outbox.control(frames.window_update(stream.id, increment))

    # How they end.

    def refuse(self, stream_id: int, code: ErrorCode) -> None:
        """Resets a stream, whether it has begun or not."""
        stream = self.by_id.get(stream_id)
        if stream is not None:
            return self.reset(stream, code)
        self._outbox.control(frames.reset(stream_id, code))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """Ends it at once; what waits to be sent is lost."""
        self._outbox.control(frames.reset(stream.id, code))
        self._drop(stream)

    def leave(self, ended: Iterable[Stream]) -> None:
        """Their last headers are out."""
        for stream in ended:
            if not stream.is_half_closed:
                # A whole response to a request that is not over (RFC 9113 section 8.1).
                self._outbox.control(frames.reset(stream.id, ErrorCode.NO_ERROR))
            self._floods.stream_ended()
            self._drop(stream)

    def drop_all(self) -> None:
        """The connection is over."""
        for stream in list(self.by_id.values()):
            self._drop(stream)

    def _end(self, stream: Stream, block: bytes) -> None:
        if not stream.is_finished:
            stream.is_finished = True
            if self._outbox.end(stream, block):
                self.leave([stream])

    def _drop(self, stream: Stream) -> None:
        del self.by_id[stream.id]
        self._outbox.forget(stream)
        self._budget.give_back(stream.held)
        if not stream.is_finished:
            stream.is_finished = True
            self.events.append(Ended(stream))
