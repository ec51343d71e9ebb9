"""Header blocks put together from HEADERS and the CONTINUATIONs after it (RFC 9113 sections 4.3, 6.2 and 6.10)."""

from __future__ import annotations

from typing import NamedTuple

from picker.transport.errors import ConnectionFault, ErrorCode, Reason
from picker.transport.frames import END_HEADERS, END_STREAM, PADDED, PRIORITY, FrameType, unpadded

_MOST_FRAGMENTS = 17
_PRIORITY_BYTES = 5
_UNUSUAL = END_HEADERS | PADDED | PRIORITY


class Block(NamedTuple):
    """All of a stream's headers, or trailers, still encoded."""

    stream_id: int
    ends_stream: bool
    data: bytes


class BlockCollector:
    """At most one block is under way on a connection; until it is whole nothing else may come."""

    __slots__ = ("_ends_stream", "_fragments", "_limit", "_stream_id", "is_open")

    def __init__(self, limit: int):
        """`limit`: bytes of one block."""
        self._limit = limit
        self._fragments: list[bytes] = []
        self._stream_id = 0
        self._ends_stream = False
        self.is_open = False

    def allows(self, kind: int, stream_id: int) -> bool:
        """Whether such a frame may come now."""
        if self.is_open:
            return kind == FrameType.CONTINUATION and stream_id == self._stream_id
        return kind != FrameType.CONTINUATION

    def begin(self, flags: int, stream_id: int, payload: bytes) -> Block | None:
        """A HEADERS frame. The block, where that is all of it. Raises ConnectionFault."""
        if flags & _UNUSUAL == END_HEADERS and len(payload) <= self._limit:
            return Block(stream_id, bool(flags & END_STREAM), payload)
        fragment = unpadded(flags, payload)
        self._stream_id, self._ends_stream = stream_id, bool(flags & END_STREAM)
        return self.go_on(flags, fragment[_PRIORITY_BYTES:] if flags & PRIORITY else fragment)

    def go_on(self, flags: int, fragment: bytes) -> Block | None:
        """A CONTINUATION frame. The block, where that was the rest of it. Raises ConnectionFault."""
        self._fragments.append(fragment)
        if len(self._fragments) > _MOST_FRAGMENTS:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.CONTINUATION_FLOOD)
        if sum(map(len, self._fragments)) > self._limit:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.HEADERS_TOO_LARGE)
        self.is_open = not flags & END_HEADERS
        if self.is_open:
            return None
        data = b"".join(self._fragments)
        self._fragments.clear()
        return Block(self._stream_id, self._ends_stream, data)
