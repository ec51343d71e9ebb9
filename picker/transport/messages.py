"""gRPC's length-prefixed messages, and the values of its headers (gRPC over HTTP2, "Requests" and "Responses")."""

from __future__ import annotations

from urllib.parse import quote

from picker.transport.errors import CallFault, Reason, Status

PREFIX_BYTES = 5
_UNITS_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_MOST_DIGITS = 8
_MOST_TEXT_BYTES = 512
# Percent-encoding leaves all printable ASCII but "%" as it is.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class Assembler:
    """Puts messages together from the pieces in which they arrive."""

    __slots__ = ("_buffer", "_limit", "_wanted", "held")

    def __init__(self, limit: int):
        """`limit`: the most bytes of one message."""
        self._limit = limit
        # Not a list of pieces: of one byte each they would take forty times their size.
        self._buffer = bytearray()
        self._wanted = PREFIX_BYTES
        self.held = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now; `held` is how much is kept of one that is not. Raises CallFault."""
        # Most messages come in one piece, and most pieces are one message.
        size = len(data) - PREFIX_BYTES
        if not self.held and 0 <= size <= self._limit and data.startswith(size.to_bytes(PREFIX_BYTES, "big")):
            return [data[PREFIX_BYTES:]]
        self._buffer += data
        messages = self._cut() if len(self._buffer) >= self._wanted else []
        self.held = len(self._buffer)
        return messages

    def _cut(self) -> list[bytes]:
        messages: list[bytes] = []
        start = 0
        with memoryview(self._buffer) as view:
            while (end := start + self._whole(self._buffer, start)) <= len(self._buffer):
                messages.append(view[start + PREFIX_BYTES : end].tobytes())
                start = end
        del self._buffer[:start]
        self._wanted = end - start
        return messages

    def _whole(self, data: bytes | bytearray, start: int) -> int:
        """The size of the message that begins there, prefix and all; of a prefix where that is not whole itself."""
        if len(data) - start < PREFIX_BYTES:
            return PREFIX_BYTES
        if data[start]:
            raise CallFault(Status.UNIMPLEMENTED, "compressed messages are not taken here", Reason.COMPRESSED)
        size = int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big")
        if size > self._limit:
            text = f"a message of {size} bytes is too large; at most {self._limit} are taken"
            raise CallFault(Status.RESOURCE_EXHAUSTED, text, Reason.MESSAGE_TOO_LARGE)
        return PREFIX_BYTES + size


def timeout_s(value: str) -> float | None:
    """The seconds of a `grpc-timeout`, such as 100m. None where it makes no sense."""
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS_S or not (digits.isascii() and digits.isdecimal()) or len(digits) > _MOST_DIGITS:
        return None
    return int(digits) * _UNITS_S[unit]


def percent_encoded(text: str) -> str:
    """The form of `grpc-message`; long texts are cut off."""
    return quote(text.encode()[:_MOST_TEXT_BYTES], safe=_PLAIN)
