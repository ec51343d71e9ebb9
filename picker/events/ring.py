"""The last decisions, in memory, bounded by number and by the memory of those that are kept in full."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from picker.events.decided import Decided
from picker.events.record import identifier

_MOST_TRIES = 16
"""Of one request id that are found by it, the last ones: clients may send the same one for ever."""

_AT_ONCE = 8
"""Shortened together, which takes two thirds of the time, while their arrays are still in the processor's caches."""


class Ring:
    """Holds the last `capacity` decisions; of older ones among them, beyond `full_bytes`, the record only."""

    def __init__(self, capacity: int, full_bytes: int):
        self._capacity = capacity
        self._full_bytes = full_bytes
        self._size_to_keep = full_bytes // max(1, capacity)
        self._all: deque[Decided] = deque()
        self._full: deque[Decided] = deque()
        self._long: list[Decided] = []
        self._bytes = 0
        self._by_request: dict[str, tuple[Decided, ...]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return f"<Ring {len(self._all)} decisions, {self._bytes} bytes in full>"

    @property
    def full_bytes(self) -> int:
        """Memory of the decisions that are kept in full."""
        return self._bytes

    def add(self, decided: Decided) -> None:
        """The newest decision."""
        self._all.append(decided)
        self._full.append(decided)
        self._bytes += decided.size
        if decided.size > self._size_to_keep:
            self._shorten_soon(decided)
        if request_id := decided.asked.terms.request_id:
            self._by_request[request_id] = (*self._by_request.get(request_id, ()), decided)[-_MOST_TRIES:]
        if len(self._all) > self._capacity:
            self._forget(self._all.popleft())
        while self._bytes > self._full_bytes and len(self._full) > 1:
            oldest = self._full.popleft()
            self._bytes -= oldest.size
            oldest.compact()

    def _shorten_soon(self, decided: Decided) -> None:
        self._long.append(decided)
        if len(self._long) >= _AT_ONCE:
            for each in self._long:
                each.shorten()
            self._long.clear()

    def find(self, name: str) -> list[Decided]:
        """The decisions with this id or request id, oldest first. A request that is tried again has several."""
        return self.find_request(name) or [each for each in self._all if name in (each.id, _shown_id(each))]

    def find_request(self, request_id: str) -> list[Decided]:
        """Those with this request id, as the client or Envoy wrote it."""
        return list(self._by_request.get(request_id, ()))

    def newest(self) -> Iterator[Decided]:
        """All of them, the newest first."""
        return reversed(self._all)

    def _forget(self, decided: Decided) -> None:
        if self._full and self._full[0] is decided:
            self._bytes -= self._full.popleft().size
        request_id = decided.asked.terms.request_id
        entries = self._by_request.get(request_id, ())
        if entries and entries[0] is decided:
            if len(entries) > 1:
                self._by_request[request_id] = entries[1:]
            else:
                del self._by_request[request_id]


def _shown_id(decided: Decided) -> str:
    return identifier(decided.asked.terms.request_id)
