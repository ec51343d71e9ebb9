"""Whether the mirror of one worker's events is complete: the rules on sequence numbers, without I/O.

An agent numbers the events of an epoch from 1 without a gap. An event is applied only if it follows the last one; one
that was seen before is ignored, whatever redelivers it. After a gap nothing is known until a snapshot sets a new start.
Silent loss shows by the agent's own count and digest, which come with each load record.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

Digest = tuple[int, int]
"""Number and exclusive-or of a set of blocks."""


class Arrival(enum.Enum):
    """What to do with an event."""

    APPLY = "apply"
    REPEAT = "repeat"
    GAP = "gap"
    """Events before this one are missing: the slot needs a snapshot from here on."""
    AWAITED = "awaited"
    """The slot is waiting for a snapshot, which will cover this event or come before a second reading of it."""


@dataclass(frozen=True, slots=True)
class FenceSettings:
    """Seconds. `patience_s`: how long events that an agent has counted may be on their way.

    `first_retry_s`, `longest_retry_s`: bounds of the doubling wait between attempts to load a snapshot.
    """

    patience_s: float = 1.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0


class Fence:
    """One epoch of one worker, in one slot. Begins dirty."""

    __slots__ = ("_attempts", "_owed", "_settings", "epoch", "is_dirty", "retry_at", "seq", "slot", "worker")

    def __init__(self, worker: str, epoch: int, slot: int, settings: FenceSettings = FenceSettings()):
        self.worker = worker
        self.epoch = epoch
        self.slot = slot
        self.seq = 0
        """Number of the last event that the mirror contains."""
        self.is_dirty = True
        """Whether a snapshot must be loaded before events count again."""
        self.retry_at = 0.0
        """When to try to load one."""
        self._settings = settings
        self._attempts = 0
        self._owed: tuple[int, float] | None = None

    def __repr__(self) -> str:
        return f"<Fence {self.worker} slot {self.slot} seq {self.seq}{' dirty' if self.is_dirty else ''}>"

    def offer(self, seq: int) -> Arrival:
        """An event has come."""
        if self.is_dirty:
            return Arrival.AWAITED
        if seq <= self.seq:
            return Arrival.REPEAT
        if seq > self.seq + 1:
            self.lose()
            return Arrival.GAP
        self.seq = seq
        return Arrival.APPLY

    def expects(self, seq: int) -> bool:
        """Whether an event with this number would be applied."""
        return not self.is_dirty and seq == self.seq + 1

    def lose(self) -> None:
        """The mirror of this slot is not to be believed any more."""
        self.is_dirty = True
        self._owed = None

    def attempt(self, now: float) -> None:
        """A snapshot is about to be loaded. Attempts grow rarer until `agrees` has once been satisfied."""
        settings = self._settings
        self.retry_at = now + min(settings.first_retry_s * 2.0 ** min(self._attempts, 32), settings.longest_retry_s)
        self._attempts += 1

    @property
    def is_stubborn(self) -> bool:
        """Whether a snapshot was loaded before this one and the mirror has not agreed with the agent since.

        Then events after that snapshot are lost, and its agent must write a new one.
        """
        return self._attempts > 1

    def restart(self, seq: int) -> None:
        """The mirror contains exactly what was there after this event."""
        self.seq = seq
        self.is_dirty = False
        self._owed = None

    def agrees(self, kv_seq: int, said: Digest, held: Digest, now: float, patience_s: float | None = None) -> bool:
        """Whether the mirror can be what the agent describes: `said` after event `kv_seq`; `held` is the mirror's.

        A mirror that is behind gets `patience_s` (that of the settings if None) to catch up with what it owes.
        """
        if kv_seq == self.seq and said != held:
            return False
        if self._owed is not None and self.seq >= self._owed[0]:
            self._owed = None
        if kv_seq > self.seq:
            self._owed = self._owed or (kv_seq, now)
            return now - self._owed[1] < (self._settings.patience_s if patience_s is None else patience_s)
        if kv_seq == self.seq:
            self._attempts = 0
        return True
