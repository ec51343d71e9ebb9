"""Which LoRA adapters a worker has in GPU memory, by our own placements and what its agent says.

Engines report the adapters of running requests only: one that is loaded and idle is in no metric, though the next
request for it costs nothing. Engines evict the adapter that was used least recently, and so does this.
"""

from __future__ import annotations

from collections import OrderedDict

SLOTS = 4
"""Adapters that a worker is taken to hold at once where it does not say."""


class LoadedAdapters:
    """The adapters used last on each slot, as many as it has room for."""

    def __init__(self) -> None:
        self._used: dict[int, OrderedDict[str, None]] = {}
        self._owners: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<LoadedAdapters {len(self._owners)} adapters on {len(self._used)} slots>"

    def use(self, slot: int, adapter: str, room: int) -> None:
        """A request for this adapter goes to this slot, whose worker holds `room` adapters at once."""
        used = self._used.setdefault(slot, OrderedDict())
        used[adapter] = None
        used.move_to_end(adapter)
        self._owners[adapter] = self._owners.get(adapter, 0) | 1 << slot
        while len(used) > max(1, room):
            self._disown(used.popitem(last=False)[0], slot)

    def clear(self, slot: int) -> None:
        """A worker is gone."""
        for adapter in self._used.pop(slot, ()):
            self._disown(adapter, slot)

    def owners(self, adapter: str) -> int:
        """Bit mask of the slots that hold this adapter."""
        return self._owners.get(adapter, 0)

    def _disown(self, adapter: str, slot: int) -> None:
        rest = self._owners[adapter] & ~(1 << slot)
        if rest:
            self._owners[adapter] = rest
        else:
            del self._owners[adapter]
