"""One stream, as far as the transport is concerned (RFC 9113 section 5.1)."""

from __future__ import annotations

from typing import Any

from picker.transport.messages import Assembler
from picker.transport.windows import ReceiveWindow


class Stream:
    """A call that is under way. `call` belongs to whoever answers it; the rest is changed by the connection alone.

    `assembler` is None once a message was lost. `held`: bytes of an unfinished message, as far as the budget knows.
    `queue`: bytes of answers that wait for the peer's window, and `trailers` what follows them.
    """

    __slots__ = (
        "assembler", "call", "held", "id", "is_answered", "is_finished", "is_half_closed", "queue", "send_window",
        "trailers", "window",
    )  # fmt: skip

    def __init__(self, stream_id: int, send_window: int, window: ReceiveWindow, assembler: Assembler):
        self.id = stream_id
        self.call: Any = None
        self.held = 0
        self.send_window = send_window
        self.window = window
        self.assembler: Assembler | None = assembler
        self.queue: bytearray | None = None
        self.trailers: bytes | None = None
        self.is_answered = self.is_half_closed = self.is_finished = False

    def __repr__(self) -> str:
        parts = ("answered", "half_closed", "finished")
        return f"<Stream {self.id}{''.join(f' {part}' for part in parts if getattr(self, f'is_{part}'))}>"
