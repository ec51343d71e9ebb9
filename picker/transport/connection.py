"""One HTTP/2 connection that carries gRPC, server side, without a socket (RFC 9113; gRPC over HTTP2).

`receive` takes bytes and returns events; `send`, `finish` and the rest change what `take_output` returns. Time comes in
as an argument. A peer can make it end the connection, never make it raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from picker.transport import frames, headers
from picker.transport.blocks import Block, BlockCollector
from picker.transport.errors import CallFault, ConnectionFault, ErrorCode, Reason, Status, StreamFault
from picker.transport.events import Ended, Event, HalfClosed, Misbehaved, NoRoom, Opened, Received
from picker.transport.frames import ACK, END_STREAM, PADDED, FrameType, Setting
from picker.transport.headers import HeaderReader
from picker.transport.limits import Bucket, Limits
from picker.transport.liveness import Liveness
from picker.transport.messages import Assembler
from picker.transport.outbox import Budget, Outbox
from picker.transport.streams import Stream
from picker.transport.windows import ReceiveWindow

CONNECTION_WINDOW = 1 << 28
"""All that a peer may send on all streams: each has a window of its own, and nothing waits to be read here."""
_STREAMS_FOR_ONE = 100
_DRAIN = b"draining"
_DRAIN_ROUND_TRIP_S = 1.0
_CONTINUATION = int(FrameType.CONTINUATION)


class Connection:
    """The protocol's state: streams, windows, and what may still come."""

    def __init__(self, limits: Limits, budget: Budget, now: float):
        self.streams: dict[int, Stream] = {}
        self.is_over = False
        self._limits = limits
        self._budget = budget
        self._reader = frames.FrameReader()
        self._headers = HeaderReader(limits.max_header_bytes)
        self._blocks = BlockCollector(limits.max_header_bytes)
        self._window = ReceiveWindow(CONNECTION_WINDOW)
        self._outbox = Outbox(budget)
        self.take_output = self._outbox.take
        """What is to be written to the peer."""
        self._early_resets = Bucket(limits.resets_per_s, now)
        self._control_frames = Bucket(limits.control_frames_per_s, now)
        self._last_id = self._may_be_reset = self._received = 0
        self._liveness = Liveness(limits, now)
        self._now = now
        self._drains_since: float | None = None
        self.takes_no_more = False
        """New calls are turned down."""
        self._events: list[Event] = []
        self._greet()

    def __repr__(self) -> str:
        return f"<Connection {len(self.streams)} streams{' draining' if self._drains_since is not None else ''}>"

    @property
    def is_drained(self) -> bool:
        """Whether it was told to drain and has: nothing is open, and nothing will be."""
        return self.takes_no_more and not self.streams

    # What comes in.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What the bytes mean, in order."""
        self._now = self._liveness.heard_at = now
        if not self.is_over:
            try:
                for frame in self._reader.feed(data):
                    self._on_frame(*frame)
                if self._received:
                    self._count_received()
            except ConnectionFault as fault:
                self._fail(fault)
        return self._take_events()

    def sweep(self, now: float) -> list[Event]:
        """To be called now and then: ends what waits for too long."""
        self._now = now
        if not self.is_over:
            try:
                self._sweep(now)
            except ConnectionFault as fault:
                self._fail(fault)
        return self._take_events()

    def lose(self) -> list[Event]:
        """The peer is gone."""
        self._abandon()
        return self._take_events()

    # What goes out.

    def send(self, stream: Stream, message: bytes) -> None:
        """Answers with one message; where that can be neither sent nor kept, the stream is reset."""
        if not stream.is_finished and not self._outbox.message(stream, message):
            self._events.append(Misbehaved(Reason.NO_ROOM))
            self._reset(stream, ErrorCode.ENHANCE_YOUR_CALM)

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

    def pause(self) -> None:
        """The socket takes no more: what is sent now waits."""
        self._outbox.pause()

    def go_on(self) -> None:
        """The socket takes more."""
        self._leave(self._outbox.go_on())

    def drain(self, now: float) -> None:
        """Takes no more calls, in two steps (RFC 9113 section 6.8): those that are on their way are still served."""
        if self._drains_since is None and not self.is_over:
            self._drains_since = now
            self._outbox.control(frames.goaway(frames.LARGEST_WINDOW, ErrorCode.NO_ERROR))
            self._outbox.control(frames.frame(FrameType.PING, 0, 0, _DRAIN))

    def close(self) -> list[Event]:
        """Ends the connection and all its calls."""
        if not self.is_over:
            self._outbox.control(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
            self._abandon()
        return self._take_events()

    # The connection.

    def _greet(self) -> None:
        self._outbox.control(
            frames.settings(
                {
                    Setting.HEADER_TABLE_SIZE: 0,
                    Setting.MAX_CONCURRENT_STREAMS: self._limits.max_streams,
                    Setting.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: 4 * self._limits.max_header_bytes,
                }
            )
        )
        self._outbox.control(frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW))

    def _fail(self, fault: ConnectionFault) -> None:
        self._events.append(Misbehaved(fault.reason))
        self._outbox.control(frames.goaway(self._last_id, fault.code, fault.reason))
        self._abandon()

    def _abandon(self) -> None:
        self.is_over = True
        for stream in list(self.streams.values()):
            self._drop(stream)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._liveness.has_greeted and (kind != FrameType.SETTINGS or flags & ACK):
            raise _protocol_error()
        if (self._blocks.is_open or kind == _CONTINUATION) and not self._blocks.allows(kind, stream_id):
            raise _protocol_error()
        step = _STEPS.get(kind)
        if step is None:
            return self._count_control_frame()
        try:
            step(self, flags, stream_id, payload)
        except StreamFault as fault:
            self._events.append(Misbehaved(fault.reason))
            self._refuse(stream_id, fault.code)

    def _sweep(self, now: float) -> None:
        self._outbox.control(self._liveness.check(now))
        if self._drains_since is not None and now - self._drains_since > _DRAIN_ROUND_TRIP_S:
            self._take_no_more()
        for stream in self._outbox.stalled(now, self._limits.stall_s):
            self._events.append(Misbehaved(Reason.STALLED))
            self._reset(stream, ErrorCode.CANCEL)

    def _take_no_more(self) -> None:
        if not self.takes_no_more:
            self.takes_no_more = True
            self._outbox.control(frames.goaway(self._last_id, ErrorCode.NO_ERROR))

    def _count_control_frame(self, cost: int = 1) -> None:
        if not self._control_frames.take(self._now, cost):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.CONTROL_FLOOD)

    # Frames of the connection.

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._liveness.has_greeted = True
        if stream_id or (flags & ACK and payload):
            raise _protocol_error()
        if flags & ACK:
            return self._headers.shrink()
        # A window for all streams means a look at each.
        self._count_control_frame(1 + len(self.streams) // _STREAMS_FOR_ONE)
        # First of all: what follows may go by the new settings.
        self._outbox.control(frames.frame(FrameType.SETTINGS, ACK, 0))
        for setting, value in frames.parsed_settings(payload):
            self._apply(setting, value)

    def _apply(self, setting: int, value: int) -> None:
        if setting == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            self._leave(self._outbox.set_initial_window(value, list(self.streams.values())))
        elif setting == Setting.MAX_FRAME_SIZE:
            if not frames.MAX_FRAME_SIZE <= value < 1 << 24:
                raise _protocol_error()
            self._outbox.set_max_frame(value)
        elif setting == Setting.ENABLE_PUSH and value > 1:
            raise _protocol_error()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) != 8:
            raise _protocol_error()
        if not flags & ACK:
            self._count_control_frame()
            self._outbox.control(frames.frame(FrameType.PING, ACK, 0, payload))
        elif payload == _DRAIN and self._drains_since is not None:
            self._take_no_more()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The peer opens no more streams; what it has opened goes on."""
        if stream_id:
            raise _protocol_error()
        self._count_control_frame()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.PROTOCOL)
        increment = int.from_bytes(payload, "big") & frames.LARGEST_WINDOW
        if not stream_id:
            if not increment:
                raise _protocol_error()
            return self._leave(self._outbox.widen(increment))
        stream = self._stream(stream_id)
        if stream is not None:
            if not increment:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
            self._leave(self._outbox.widen_stream(stream, increment))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Deprecated by RFC 9113 section 5.3, and ignored."""
        self._count_control_frame()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise _protocol_error()

    # Frames of a stream.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise _protocol_error()
        self._on_block(self._blocks.begin(flags, stream_id, payload))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._on_block(self._blocks.go_on(flags, payload))

    def _on_block(self, block: Block | None) -> None:
        if block is None:
            return
        if block.stream_id > self._last_id:
            return self._open(*block)
        # Trailers; gRPC's clients send none.
        self._headers.skip(block.data)
        stream = self._stream(block.stream_id)
        if stream is not None:
            if not block.ends_stream or stream.is_half_closed:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
            self._half_close(stream)

    def _open(self, stream_id: int, ends_stream: bool, block: bytes) -> None:
        if self.takes_no_more:
            # The peer knows, or will know, that this stream is for somebody else.
            return self._headers.skip(block)
        self._last_id = stream_id
        head = self._headers.read(block)
        if len(self.streams) >= self._limits.max_streams:
            raise StreamFault(ErrorCode.REFUSED_STREAM, Reason.TOO_MANY_STREAMS)
        window = ReceiveWindow(self._limits.stream_window_bytes)
        assembler = Assembler(self._limits.max_message_bytes)
        stream = self.streams[stream_id] = Stream(stream_id, self._outbox.initial_window, window, assembler)
        stream.is_half_closed = ends_stream
        if head.http_status != 200:
            return self._end(stream, headers.http_refusal(head.http_status))
        if head.is_badly_timed:
            return self.finish(stream, Status.INTERNAL, "grpc-timeout makes no sense")
        self._events.append(Opened(stream, head))
        if ends_stream:
            self._events.append(HalfClosed(stream))

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._received += size
        if not size and not flags & END_STREAM:
            self._count_control_frame()
        stream = self.streams.get(stream_id) or self._stream(stream_id)
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

    def _count_received(self) -> None:
        increment = self._window.take(self._received)
        self._received = 0
        if increment < 0:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        if increment:
            self._outbox.control(frames.window_update(0, increment))

    def _read(self, stream: Stream, assembler: Assembler, data: bytes) -> None:
        try:
            for message in assembler.feed(data):
                self._events.append(Received(stream, message))
            if assembler.held != stream.held:
                self._account(stream, assembler.held)
        except CallFault as fault:
            self._events += (Misbehaved(fault.reason), Ended(stream))
            self.finish(stream, fault.status, fault.text)

    def _account(self, stream: Stream, held: int) -> None:
        """What is held of an unfinished message counts like what is held of a request."""
        more = held - stream.held
        if more < 0:
            self._budget.give_back(-more)
        elif not self._budget.take(more):
            self._events += (Misbehaved(Reason.NO_ROOM), NoRoom(stream))
            self._budget.give_back(stream.held)
            stream.assembler, held = None, 0
        stream.held = held

    def _half_close(self, stream: Stream) -> None:
        if stream.held:
            raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.MESSAGE_CUT_OFF)
        stream.is_half_closed = True
        if not stream.is_finished:
            self._events.append(HalfClosed(stream))

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.PROTOCOL)
        stream = self._stream(stream_id)
        if stream is None:
            return self._on_late_reset()
        is_early = not stream.is_answered
        self._drop(stream)
        if is_early and not self._early_resets.take(self._now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.RAPID_RESET)

    def _on_late_reset(self) -> None:
        """Of a stream that we have ended. Envoy sends one after each, which may come after our trailers."""
        if self._may_be_reset:
            self._may_be_reset -= 1
        else:
            self._count_control_frame()

    # Streams.

    def _stream(self, stream_id: int) -> Stream | None:
        """None where it has ended. Raises ConnectionFault where it never began."""
        stream = self.streams.get(stream_id)
        if stream is None and (stream_id > self._last_id or not stream_id & 1) and not self.takes_no_more:
            raise _protocol_error()
        return stream

    def _refuse(self, stream_id: int, code: ErrorCode) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            return self._reset(stream, code)
        self._outbox.control(frames.reset(stream_id, code))

    def _reset(self, stream: Stream, code: ErrorCode) -> None:
        self._outbox.control(frames.reset(stream.id, code))
        self._drop(stream)

    def _end(self, stream: Stream, block: bytes) -> None:
        if not stream.is_finished:
            stream.is_finished = True
            if self._outbox.end(stream, block):
                self._leave([stream])

    def _leave(self, ended: Iterable[Stream]) -> None:
        """Their last headers are out."""
        for stream in ended:
            if not stream.is_half_closed:
                # A whole response to a request that is not over (RFC 9113 section 8.1).
                self._outbox.control(frames.reset(stream.id, ErrorCode.NO_ERROR))
            self._may_be_reset += 1
            self._drop(stream)

    def _drop(self, stream: Stream) -> None:
        del self.streams[stream.id]
        self._outbox.forget(stream)
        self._budget.give_back(stream.held)
        if not stream.is_finished:
            stream.is_finished = True
            self._events.append(Ended(stream))


def _protocol_error() -> ConnectionFault:
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)


_Step = Callable[[Connection, int, int, bytes], None]
_STEPS: Mapping[int, _Step] = {
    FrameType.DATA: Connection._on_data,
    FrameType.HEADERS: Connection._on_headers,
    FrameType.PRIORITY: Connection._on_priority,
    FrameType.RST_STREAM: Connection._on_reset,
    FrameType.SETTINGS: Connection._on_settings,
    FrameType.PUSH_PROMISE: Connection._on_push_promise,
    FrameType.PING: Connection._on_ping,
    FrameType.GOAWAY: Connection._on_goaway,
    FrameType.WINDOW_UPDATE: Connection._on_window_update,
    FrameType.CONTINUATION: Connection._on_continuation,
}
