"""What goes out: control frames at once, answers as far as the peer's windows allow (RFC 9113 section 5.2)."""

from __future__ import annotations

from typing import Protocol

from picker.transport import frames
from picker.transport.errors import ConnectionFault, ErrorCode, Reason, StreamFault
from picker.transport.frames import END_HEADERS, END_STREAM, FrameType
from picker.transport.headers import RESPONSE
from picker.transport.messages import PREFIX_BYTES
from picker.transport.streams import Stream

_HEADERS = int(FrameType.HEADERS)


class Budget(Protocol):
    """How many bytes all connections may hold together (`picker.extproc.budget.ByteBudget`)."""

    def take(self, size: int) -> bool: ...  # noqa: D102
    def give_back(self, size: int) -> None: ...  # noqa: D102


class Outbox:
    """The sending half of a connection."""

    def __init__(self, budget: Budget):
        self._budget = budget
        self._ready: list[bytes | memoryview] = []
        self._window = frames.DEFAULT_WINDOW
        self._initial_window = frames.DEFAULT_WINDOW
        self._max_frame = frames.MAX_FRAME_SIZE
        self._is_paused = False
        self._waiting: dict[Stream, float | None] = {}
        """Streams with a queue, and since when nothing of it could be sent."""
        self._turns: dict[Stream, None] = {}
        """Those of them whose own window is open, in the order of their turns."""

    @property
    def initial_window(self) -> int:
        """Of a new stream."""
        return self._initial_window

    def take(self) -> bytes:
        """All that may be written now."""
        if not self._ready:
            return b""
        ready, self._ready = self._ready, []
        return b"".join(ready)

    def control(self, frame: bytes) -> None:
        """A frame that waits for no window."""
        self._ready.append(frame)

    def message(self, stream: Stream, message: bytes) -> bool:
        """One gRPC message. False where there is no room to keep it until the peer takes it."""
        if not stream.is_answered:
            stream.is_answered = True
            self._headers(stream, RESPONSE, END_HEADERS)
        size = len(message) + PREFIX_BYTES
        is_free = stream.queue is None and not self._is_paused
        if is_free and size <= self._max_frame and size <= self._window and size <= stream.send_window:
            self._window -= size
            stream.send_window -= size
            self._ready += (frames.message_header(stream.id, size - PREFIX_BYTES), message)
            return True
        return self._large(stream, b"\0" + (size - PREFIX_BYTES).to_bytes(4, "big") + message)

    def end(self, stream: Stream, block: bytes) -> bool:
        """The response's last headers, after all that waits. Whether they are out."""
        if stream.queue is not None:
            stream.trailers = block
            return False
        self._headers(stream, block, END_HEADERS | END_STREAM)
        return True

    def widen(self, increment: int) -> list[Stream]:
        """The connection's window grows. The streams that ended by it. Raises ConnectionFault."""
        self._window += increment
        if self._window > frames.LARGEST_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        return self._send_in_turn()

    def widen_stream(self, stream: Stream, increment: int) -> list[Stream]:
        """A stream's window grows. The streams that ended by it. Raises StreamFault."""
        stream.send_window += increment
        if stream.send_window > frames.LARGEST_WINDOW:
            raise StreamFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
        self._let_take_turns(stream)
        return self._send_in_turn()

    def set_initial_window(self, size: int, streams: list[Stream]) -> list[Stream]:
        """Of all streams, old and new (section 6.9.2). The streams that ended by it. Raises ConnectionFault."""
        change, self._initial_window = size - self._initial_window, size
        for stream in streams:
            stream.send_window += change
            if stream.send_window > frames.LARGEST_WINDOW:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, Reason.FLOW_CONTROL)
            self._let_take_turns(stream)
        return self._send_in_turn()

    def set_max_frame(self, size: int) -> None:
        """Of the frames that the peer takes."""
        self._max_frame = size

    def pause(self) -> None:
        """Answers wait, as if there were no window."""
        self._is_paused = True

    def go_on(self) -> list[Stream]:
        """They need not any more. The streams that ended by it."""
        self._is_paused = False
        return self._send_in_turn()

    def forget(self, stream: Stream) -> None:
        """Drops what waits."""
        if stream.queue is not None:
            self._budget.give_back(len(stream.queue))
            stream.queue = None
            del self._waiting[stream]
            self._turns.pop(stream, None)

    def stalled(self, now: float, patience_s: float) -> list[Stream]:
        """Streams whose queue has not moved for so long, as far as looks at it tell."""
        late = [stream for stream, since in self._waiting.items() if since is not None and now - since > patience_s]
        for stream, since in self._waiting.items():
            if since is None:
                self._waiting[stream] = now
        return late

    def _allowed(self, stream: Stream) -> int:
        return 0 if self._is_paused else min(self._window, stream.send_window)

    def _headers(self, stream: Stream, block: bytes, flags: int) -> None:
        self._ready += (frames.frame_header(_HEADERS, flags, stream.id, len(block)), block)

    def _large(self, stream: Stream, data: bytes) -> bool:
        """Sends what may be sent at once and keeps the rest."""
        start = 0
        with memoryview(data) as view:
            while stream.queue is None and start < len(data) and (sent := self._send(stream, view[start:])):
                start += sent
        return start == len(data) or self._keep(stream, data[start:])

    def _keep(self, stream: Stream, data: bytes) -> bool:
        if not self._budget.take(len(data)):
            return False
        if stream.queue is None:
            stream.queue = bytearray()
            self._waiting[stream] = None
            self._let_take_turns(stream)
        stream.queue += data
        return True

    def _let_take_turns(self, stream: Stream) -> None:
        if stream.queue is not None and stream.send_window > 0:
            self._turns[stream] = None

    def _send_in_turn(self) -> list[Stream]:
        """One frame of each stream after another, so that a long answer does not hold up the short ones."""
        ended = []
        while self._turns and self._window > 0 and not self._is_paused:
            stream = next(iter(self._turns))
            del self._turns[stream]
            if self._send_next(stream):
                self._let_take_turns(stream)
            elif stream.trailers is not None:
                self._headers(stream, stream.trailers, END_HEADERS | END_STREAM)
                ended.append(stream)
        return ended

    def _send_next(self, stream: Stream) -> bool:
        """One frame of the queue. Whether more is left."""
        assert stream.queue is not None
        # A copy, since the queue moves on.
        sent = self._send(stream, memoryview(bytes(stream.queue[: self._max_frame])))
        del stream.queue[:sent]
        self._budget.give_back(sent)
        if stream.queue:
            self._waiting[stream] = None
            return True
        self.forget(stream)
        return False

    def _send(self, stream: Stream, data: memoryview) -> int:
        """One frame of `data`, as large as it may be. How much went into it."""
        size = min(len(data), self._max_frame, self._allowed(stream))
        if size <= 0:
            return 0
        self._ready += (frames.frame_header(FrameType.DATA, 0, stream.id, size), data[:size])
        self._window -= size
        stream.send_window -= size
        return size
