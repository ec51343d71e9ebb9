"""Flow control of what we receive (RFC 9113 sections 5.2 and 6.9)."""

from __future__ import annotations

CONNECTION_WINDOW = 1 << 28
"""All that a peer may send on all streams: each has a window of its own, and nothing waits to be read here."""


class ReceiveWindow:
    """How much a peer may still send, and when to tell it that it may send more."""

    __slots__ = ("_is_open", "_left", "_owed", "_size")

    def __init__(self, size: int):
        self._size = self._left = size
        self._owed = 0
        self._is_open = True

    def take(self, size: int) -> int:
        """Notes what has come. What to allow in return; -1 where it was more than had been allowed."""
        self._left -= size
        if self._left < 0:
            return -1
        self._owed += size
        return self._increment() if self._owed > self._size >> 1 else 0

    def shut(self) -> None:
        """Allows no more until `open`."""
        self._is_open = False

    def open(self) -> int:
        """Goes on. What to allow now."""
        self._is_open = True
        return self._increment() if self._owed > self._size >> 1 else 0

    def _increment(self) -> int:
        """Only what is worth a frame, which is half of the window."""
        if not self._is_open:
            return 0
        owed, self._owed = self._owed, 0
        self._left += owed
        return owed
