"""A memo that is bounded in bytes and forgets what was not asked for the longest.

Its values are bytes: of those the garbage collector takes no notice, and a pass over a million objects would hold
everything else for tens of milliseconds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

OVERHEAD_BYTES = 350
"""Of an entry in CPython: key, node, the value's head."""


@dataclass(frozen=True, slots=True)
class MemoStatistics:
    """Counts since the start, except for `entries` and `bytes`, which are now."""

    entries: int
    bytes: int
    hits: int
    misses: int
    evictions: int


class Memo:
    """Values by digest. Thread-safe."""

    def __init__(self, most_bytes: int):
        self._most_bytes = most_bytes
        self._values: OrderedDict[bytes, bytes] = OrderedDict()
        self._bytes = self._hits = self._misses = self._evictions = 0
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Memo {self.statistics()}>"

    def get(self, key: bytes) -> bytes | None:
        """The value, None if it is not known (any more)."""
        found = self.leading((key,))
        return found[0] if found else None

    def leading(self, keys: Sequence[bytes]) -> list[bytes]:
        """The values of the first keys, up to the first one that is not known."""
        with self._lock:
            known = 0
            while known < len(keys) and keys[known] in self._values:
                known += 1
            self._hits += known
            self._misses += known < len(keys)
            self._touch(keys[:known])
            return [self._values[key] for key in keys[:known]]

    def touch(self, keys: Sequence[bytes]) -> None:
        """Counts as having been asked for these just now."""
        with self._lock:
            self._touch([key for key in keys if key in self._values])

    def put(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """Remembers these, at the expense of the oldest; the first of them is kept the longest."""
        with self._lock:
            for key, value in reversed(list(entries)):
                self._forget(key)
                self._values[key] = value
                self._bytes += len(value) + OVERHEAD_BYTES
            while self._bytes > self._most_bytes:
                self._forget(next(iter(self._values)))
                self._evictions += 1

    def statistics(self) -> MemoStatistics:
        """How it does."""
        # Without the lock: the event loop asks, and must not wait for a thread that remembers a long prompt.
        return MemoStatistics(len(self._values), self._bytes, self._hits, self._misses, self._evictions)

    def _touch(self, keys: Sequence[bytes]) -> None:
        # The first is touched last: a value is of no use without those before it, so it has to go earlier.
        for key in reversed(keys):
            self._values.move_to_end(key)

    def _forget(self, key: bytes) -> None:
        if (value := self._values.pop(key, None)) is not None:
            self._bytes -= len(value) + OVERHEAD_BYTES
