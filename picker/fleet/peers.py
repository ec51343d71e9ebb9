"""The other pickers of a pool and our seat among them; without I/O.

Each picker writes its sums to a numbered seat (`picker.redisview.exchange`). Two can come to share one: a picker that
was frozen for longer than its lease writes to a seat that was given away. Whoever finds another in its seat looks for
a free one, and what it leaves behind there is known by its name and an older beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from picker.fleet.others import Sums
from picker.redisview.records import Foreign
from picker.redisview.share_records import SHARE_BYTES, Share

_log = structlog.get_logger()
_SHUNNED_S = 10.0
"""A seat with something huge in it is not read for so long."""


class Peers:
    """Who sits where. `own`: our name among pickers. Times in seconds."""

    def __init__(self, own: int, seats: int, choose: Callable[[Sequence[int]], int]):
        self.seat: int | None = None
        """Where we write; it is ours once `is_seated`."""
        self.is_seated = False
        self.foreign = 0
        self._own = own
        self._seats = range(seats)
        self._choose = choose
        self._shunned: dict[int, float] = {}
        self._packed: dict[int, tuple[bytes, Share | None, float]] = {}
        self._heard: dict[int, tuple[Share, float]] = {}
        self._is_full = False

    def __repr__(self) -> str:
        return f"<Peers {len(self)}, seat {self.seat}{'' if self.is_seated else ' not ours'}>"

    def __len__(self) -> int:
        return len(self._heard)

    def readable(self, now: float) -> list[int]:
        """The seats to be read."""
        self._shunned = {seat: until for seat, until in self._shunned.items() if until > now}
        return [seat for seat in self._seats if seat not in self._shunned]

    def hear(self, shares: Mapping[int, bytes], now: float) -> bool:
        """What stands in the seats. Whether anything in it has changed."""
        before = {seat: share for seat, (_, share, _) in self._packed.items()}
        self._packed = {seat: self._read(seat, data, now) for seat, data in shares.items()}
        self._heard = {}
        for _, share, came_at in self._packed.values():
            if share is not None and share.picker != self._own and self._is_newer(share):
                self._heard[share.picker] = (share, came_at)
        self._heed_own_seat()
        return before != {seat: share for seat, (_, share, _) in self._packed.items()}

    def forget(self) -> None:
        """Nothing has been heard for longer than what was said counts."""
        self._packed, self._heard = {}, {}
        self.is_seated = False

    def sums(self) -> Iterable[tuple[Sums, float]]:
        """What each of the others has in flight, and when we heard it."""
        for share, came_at in self._heard.values():
            yield _sums(share), came_at

    def look_for_seat(self) -> None:
        """Chooses a seat to claim if we have none; there may be none left."""
        if self.seat is not None:
            return
        free = [seat for seat in self._seats if seat not in self._packed and seat not in self._shunned]
        if free:
            self.seat = self._choose(free)
        if not free and not self._is_full:
            consequence = "other pickers do not see what this one has in flight"
            _log.error("too_many_pickers", seats=len(self._seats), consequence=consequence)
        self._is_full = not free

    def note_written(self, is_seated: bool) -> None:
        """Our share was written: whether it stands in our seat now."""
        if not is_seated:
            # Taken by another just now; or ours, whose lease was over, which is free to be claimed again.
            self.seat = None
        self.is_seated = is_seated

    def _read(self, seat: int, data: bytes, now: float) -> tuple[bytes, Share | None, float]:
        known = self._packed.get(seat)
        if known is not None and known[0] == data:
            return known
        if len(data) > SHARE_BYTES:
            self._shunned[seat] = now + _SHUNNED_S
            data = b""
        try:
            return data, Share.unpack(data), now
        except Foreign:
            self.foreign += 1
            return data, None, now

    def _is_newer(self, share: Share) -> bool:
        known = self._heard.get(share.picker)
        return known is None or share.beat > known[0].beat

    def _heed_own_seat(self) -> None:
        if self.seat is None or not self.is_seated:
            return
        _, share, _ = self._packed.get(self.seat, (b"", None, 0.0))
        if share is not None and share.picker != self._own:
            self.seat, self.is_seated = None, False


def _sums(share: Share) -> Sums:
    rows = share.rows
    return Sums(
        epochs=rows["epoch"].astype("u8"),
        requests=rows["requests"].astype("i8"),
        context_tokens=rows["context_tokens"].astype("i8"),
        prefill_s=rows["prefill_s"].astype("f8"),
        window_s=rows["window_s"].astype("f8"),
        token_age_s=rows["token_age_s"].astype("f8"),
        owing_age_s=rows["owing_age_s"].astype("f8"),
    )
