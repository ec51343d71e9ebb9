"""Frames: the nine bytes before each, cutting them from what is received, those that we send (RFC 9113, 4 and 6)."""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping

from picker.transport.errors import ConnectionFault, ErrorCode, Reason

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What a client says first (section 3.4)."""
MAX_FRAME_SIZE = 1 << 14
"""Of the frames that we take: the protocol's default. Larger ones are not faster, and are held until they are whole."""
LARGEST_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = (1 << 16) - 1


class FrameType(enum.IntEnum):
    """Section 6. Frames of other types are ignored (section 4.1)."""

    DATA = 0x0
    HEADERS = 0x1
    PRIORITY = 0x2
    RST_STREAM = 0x3
    SETTINGS = 0x4
    PUSH_PROMISE = 0x5
    PING = 0x6
    GOAWAY = 0x7
    WINDOW_UPDATE = 0x8
    CONTINUATION = 0x9


class Setting(enum.IntEnum):
    """Section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


# Plain integers: with an enum's members `flags & PADDED` is several times slower.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20

_HEADER = struct.Struct(">HBBBL")
"""Length (24 bits, as 16 and 8), type, flags, stream."""
_MESSAGE = struct.Struct(">HBBBLBL")
"""The same, and gRPC's prefix of a message: compressed or not, length."""
_SETTING = struct.Struct(">HL")
HEADER_BYTES = _HEADER.size

Frame = tuple[int, int, int, bytes]
"""Type, flags, stream, payload."""


class FrameReader:
    """Cuts frames from bytes, however those arrive."""

    __slots__ = ("_is_greeted", "_rest", "_wanted")

    def __init__(self) -> None:
        self._rest = bytearray()
        self._wanted = len(PREFACE)
        self._is_greeted = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now. Raises ConnectionFault."""
        if self._rest:
            self._rest += data
            # Not before there is something to cut: a peer that sends byte by byte would have each copied many times.
            if len(self._rest) < self._wanted:
                return
            data = bytes(self._rest)
            self._rest.clear()
        start = 0 if self._is_greeted else self._greet(data)
        have = len(data) if self._is_greeted else 0
        while have - start >= HEADER_BYTES:
            high, low, kind, flags, stream_id = _HEADER.unpack_from(data, start)
            size = high << 8 | low
            if size > MAX_FRAME_SIZE:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.FRAME_TOO_LARGE)
            end = start + HEADER_BYTES + size
            if end > have:
                self._wanted = HEADER_BYTES + size
                break
            yield kind, flags, stream_id & LARGEST_WINDOW, data[start + HEADER_BYTES : end]
            start = end
        else:
            self._wanted = HEADER_BYTES if self._is_greeted else len(PREFACE)
        if start < have or not self._is_greeted:
            self._rest += data[start:]

    def _greet(self, data: bytes) -> int:
        """Where the frames begin."""
        if not data.startswith(PREFACE[: len(data)]):
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, Reason.NOT_HTTP2)
        self._is_greeted = len(data) >= len(PREFACE)
        return len(PREFACE) if self._is_greeted else 0


def frame(kind: FrameType, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Any frame, whole."""
    return frame_header(kind, flags, stream_id, len(payload)) + payload


def frame_header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """The nine bytes before a payload of `size` bytes."""
    return _HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def message_header(stream_id: int, size: int) -> bytes:
    """All that stands before a gRPC message of `size` bytes that goes into one DATA frame."""
    whole = size + 5
    return _MESSAGE.pack(whole >> 8, whole & 0xFF, 0, 0, stream_id, 0, size)


def settings(values: Mapping[Setting, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(FrameType.SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def parsed_settings(payload: bytes) -> Iterator[tuple[int, int]]:
    """The pairs in a SETTINGS frame. Raises ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, Reason.PROTOCOL)
    return _SETTING.iter_unpack(payload)


def window_update(stream_id: int, increment: int) -> bytes:
    """More bytes may come; stream 0 is the connection."""
    return frame(FrameType.WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def reset(stream_id: int, code: ErrorCode) -> bytes:
    """A RST_STREAM frame."""
    return frame(FrameType.RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: ErrorCode, text: str = "") -> bytes:
    """A GOAWAY frame; streams after `last_stream_id` were not looked at and may be tried elsewhere."""
    return frame(FrameType.GOAWAY, 0, 0, last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + text.encode())


def unpadded(flags: int, payload: bytes) -> bytes:
    """Without padding (section 6.1). Raises ConnectionFault."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
    return payload[1 : len(payload) - payload[0]]
