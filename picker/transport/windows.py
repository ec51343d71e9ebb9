"""Flow control of what we receive (RFC 9113 sections 5.2 and 6.9)."""

from __future__ import annotations


class ReceiveWindow:
    """How much a peer may still send, and when to tell it that it may send more.

    `held_back` counts what was received and is not to be allowed again yet, because nobody has read it.
    """

    __slots__ = ("_held_back", "_is_open", "_left", "_owed", "_size")

    def __init__(self, size: int):
        self._size = self._left = size
        self._owed = 0
        self._is_open = True

    def take(self, size: int) -> bool:
        """Notes what has come. False where it is more than was allowed."""
        self._left -= size
        self._owed += size
        return self._left >= 0

    def increment(self) -> int:
        """What to allow now; 0 until it is worth a frame, which is at half of the window."""
        if not self._is_open or self._owed <= self._size >> 1:
            return 0
        owed, self._owed = self._owed, 0
        self._left += owed
        return owed

    def shut(self) -> None:
        """Allows no more until `open`."""
        self._is_open = False

    def open(self) -> None:
        """Goes on."""
        self._is_open = True
