"""When a publisher writes next. Pure: times come in, in seconds of one monotonic clock."""

from __future__ import annotations

import math


class Schedule:
    """What has been written when, and what waits to be.

    Times are -inf for "never", and so "now" where they say when to do it again.
    """

    def __init__(self, *, coalesce_s: float, load_interval_s: float, heartbeat_s: float, snapshot_interval_s: float):
        """The intervals of `PublisherSettings`."""
        self._coalesce_s = coalesce_s
        self._load_interval_s = load_interval_s
        self._heartbeat_s = heartbeat_s
        self._snapshot_interval_s = snapshot_interval_s
        self._events_since = math.inf
        self._has_load = False
        self._written_at = -math.inf
        self._renewed_at = -math.inf
        self._snapshot_at = -math.inf

    def __repr__(self) -> str:
        return f"<Schedule: next at {self.next_at:.3f}>"

    @property
    def heartbeat_at(self) -> float:
        """When the lease is to be renewed, whatever else there is."""
        return self._renewed_at + self._heartbeat_s

    @property
    def next_at(self) -> float:
        """When the next write is due."""
        load_at = self._written_at + self._load_interval_s if self._has_load else math.inf
        return min(self.heartbeat_at, load_at, self._events_since + self._coalesce_s)

    def renews(self, now: float) -> bool:
        """Whether a write at this time renews the lease as well; not each of many does."""
        return now - self._renewed_at >= self._load_interval_s

    def is_snapshot_old(self, now: float) -> bool:
        """Whether it is time for another one, if anything has changed."""
        return now - self._snapshot_at >= self._snapshot_interval_s

    def note_events(self, now: float) -> bool:
        """Events wait to be written. False where that was known."""
        if self._events_since != math.inf:
            return False
        self._events_since = now
        return True

    def note_load(self) -> None:
        """There is a load that is not written yet."""
        self._has_load = True

    def drop_events(self) -> None:
        """Those that waited are for nobody any more."""
        self._events_since = math.inf

    def renew_at_once(self) -> None:
        """The next write is due now."""
        self._renewed_at = -math.inf

    def note_renewed(self, now: float) -> None:
        """The lease was renewed, or looked at."""
        self._renewed_at = now

    def note_written(self, now: float, *, renews: bool, has_snapshot: bool) -> None:
        """All that waited is in a write that begins now."""
        self._events_since, self._has_load, self._written_at = math.inf, False, now
        if renews:
            self._renewed_at = now
        if has_snapshot:
            self._snapshot_at = now
