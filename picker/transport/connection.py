"""One HTTP/2 connection that carries gRPC, server side, without a socket (RFC 9113; gRPC over HTTP2).

`receive` takes bytes and returns events; `send`, `finish` and the rest change what `take_output` returns. Time comes in
as an argument. A peer can make it end the connection, never make it raise.

Here is what concerns the connection: frames, settings, liveness, its end. Calls are `open_streams`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from picker.transport import frames
from picker.transport.blocks import BlockCollector
from picker.transport.errors import ConnectionFault, ErrorCode, Reason, StreamFault, protocol_error
from picker.transport.events import Event, Misbehaved
from picker.transport.floods import FloodGuard
from picker.transport.frames import ACK, FrameType, Setting
from picker.transport.limits import Limits
from picker.transport.liveness import Liveness
from picker.transport.open_streams import OpenStreams
from picker.transport.outbox import Budget, Outbox
from picker.transport.streams import Stream
from picker.transport.windows import CONNECTION_WINDOW

_STREAMS_FOR_ONE = 100
_DRAIN = b"draining"
_DRAIN_ROUND_TRIP_S = 1.0
_DATA = int(FrameType.DATA)
_CONTINUATION = int(FrameType.CONTINUATION)


class Connection:
    """The protocol's state, and what may still come."""

    def __init__(self, limits: Limits, budget: Budget, now: float):
        self.is_over = False
        self._limits = limits
        self._reader = frames.FrameReader()
        self._blocks = BlockCollector(limits.max_header_bytes)
        self._liveness = Liveness(limits, now)
        self._floods = FloodGuard(limits, now)
        self._drains_since: float | None = None
        self._outbox = Outbox(budget)
        self.take_output = self._outbox.take
        """What is to be written to the peer."""
        self._streams = streams = OpenStreams(limits, budget, self._outbox, self._floods)
        self.streams: Mapping[int, Stream] = streams.by_id
        # What is done to a stream does not concern the connection, and is done several times for each request.
        self.send, self.finish = streams.send, streams.finish
        self.hold, self.resume = streams.hold, streams.resume
        self._greet()

    def __repr__(self) -> str:
        return f"<Connection {len(self.streams)} streams{' draining' if self._drains_since is not None else ''}>"

    @property
    def is_drained(self) -> bool:
        """Whether it was told to drain and has: nothing is open, and nothing will be."""
        return self._streams.takes_no_more and not self.streams

    # What comes in.

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What the bytes mean, in order."""
        self._floods.now = self._liveness.heard_at = now
        if not self.is_over:
            try:
                for frame in self._reader.feed(data):
                    self._on_frame(*frame)
                if self._streams.received:
                    self._streams.count_received()
            except ConnectionFault as fault:
                self._fail(fault)
        return self._streams.take_events()

    def sweep(self, now: float) -> list[Event]:
        """To be called now and then: ends what waits for too long."""
        self._floods.now = now
        if not self.is_over:
            try:
                self._sweep(now)
            except ConnectionFault as fault:
                self._fail(fault)
        return self._streams.take_events()

    def lose(self) -> list[Event]:
        """The peer is gone."""
        self._abandon()
        return self._streams.take_events()

    # What goes out.

    def pause(self) -> None:
        """The socket takes no more: what is sent now waits."""
        self._outbox.pause()

    def go_on(self) -> None:
        """The socket takes more."""
        self._streams.leave(self._outbox.go_on())

    def drain(self, now: float) -> None:
        """Takes no more calls, in two steps (RFC 9113 section 6.8): those that are on their way are still served."""
        if self._drains_since is None and not self.is_over:
            self._drains_since = now
            self._outbox.control(frames.goaway(frames.LARGEST_WINDOW, ErrorCode.NO_ERROR))
            self._outbox.control(frames.frame(FrameType.PING, 0, 0, _DRAIN))

    def close(self) -> list[Event]:
        """Ends the connection and all its calls."""
        if not self.is_over:
            self._outbox.control(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))
            self._abandon()
        return self._streams.take_events()

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
        self._streams.events.append(Misbehaved(fault.reason))
        self._outbox.control(frames.goaway(self._streams.last_id, fault.code, fault.reason))
        self._abandon()

    def _abandon(self) -> None:
        self.is_over = True
        self._streams.drop_all()

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._liveness.has_greeted and (kind != FrameType.SETTINGS or flags & ACK):
            raise protocol_error()
        if (self._blocks.is_open or kind == _CONTINUATION) and not self._blocks.allows(kind, stream_id):
            raise protocol_error()
        try:
            # Most are.
            if kind == _DATA:
                self._streams.on_data(flags, stream_id, payload)
            elif (step := _STEPS.get(kind)) is not None:
                step(self, flags, stream_id, payload)
            else:
                self._floods.control_frame()
        except StreamFault as fault:
            self._streams.events.append(Misbehaved(fault.reason))
            self._streams.refuse(stream_id, fault.code)

    def _sweep(self, now: float) -> None:
        self._outbox.control(self._liveness.check(now))
        if self._drains_since is not None and now - self._drains_since > _DRAIN_ROUND_TRIP_S:
            self._take_no_more()
        for stream in self._outbox.stalled(now, self._limits.stall_s):
            self._streams.events.append(Misbehaved(Reason.STALLED))
            self._streams.reset(stream, ErrorCode.CANCEL)

    def _take_no_more(self) -> None:
        if not self._streams.takes_no_more:
            self._streams.takes_no_more = True
            self._outbox.control(frames.goaway(self._streams.last_id, ErrorCode.NO_ERROR))

    # Frames of the connection.

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        self._liveness.has_greeted = True
        if stream_id or (flags & ACK and payload):
            raise protocol_error()
        if flags & ACK:
            return self._streams.headers.shrink()
        # A window for all streams means a look at each.
        self._floods.control_frame(1 + len(self.streams) // _STREAMS_FOR_ONE)
        # First of all: what follows may go by the new settings.
        self._outbox.control(frames.frame(FrameType.SETTINGS, ACK, 0))
        for setting, value in frames.parsed_settings(payload):
            self._apply(setting, value)

    def _apply(self, setting: int, value: int) -> None:
        if setting == Setting.INITIAL_WINDOW_SIZE:
            if value > frames.LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            self._streams.leave(self._outbox.set_initial_window(value, list(self.streams.values())))
        elif setting == Setting.MAX_FRAME_SIZE:
            if not frames.MAX_FRAME_SIZE <= value < 1 << 24:
                raise protocol_error()
            self._outbox.set_max_frame(value)
        elif setting == Setting.ENABLE_PUSH and value > 1:
            raise protocol_error()

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id or len(payload) != 8:
            raise protocol_error()
        if not flags & ACK:
            self._floods.control_frame()
            self._outbox.control(frames.frame(FrameType.PING, ACK, 0, payload))
        elif payload == _DRAIN and self._drains_since is not None:
            self._take_no_more()

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        """The peer opens no more streams; what it has opened goes on."""
        if stream_id:
            raise protocol_error()
        self._floods.control_frame()

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.PROTOCOL)
        increment = int.from_bytes(payload, "big") & frames.LARGEST_WINDOW
        if not stream_id:
            if not increment:
                raise protocol_error()
            return self._streams.leave(self._outbox.widen(increment))
        stream = self._streams.find(stream_id)
        if stream is not None:
            if not increment:
                raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
            self._streams.leave(self._outbox.widen_stream(stream, increment))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        """Deprecated by RFC 9113 section 5.3, and ignored."""
        self._floods.control_frame()

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise protocol_error()

    # Frames of a stream.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise protocol_error()
        if (block := self._blocks.begin(flags, stream_id, payload)) is not None:
            self._streams.on_block(block)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if (block := self._blocks.go_on(flags, payload)) is not None:
            self._streams.on_block(block)

    def _on_reset(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.PROTOCOL)
        self._streams.on_reset(stream_id)


_Step = Callable[[Connection, int, int, bytes], None]
_STEPS: Mapping[int, _Step] = {
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
