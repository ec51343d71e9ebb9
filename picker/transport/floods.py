"""What a peer may do, but not all the time (RFC 9113 section 10.5)."""

from __future__ import annotations

from picker.transport.errors import ConnectionFault, ErrorCode, Reason
from picker.transport.limits import Limits

_BURST_S = 10
"""A bucket holds what it takes in so many seconds: crowds come and go at once."""


class FloodGuard:
    """Counts, for one connection, what costs its peer nothing. Each method raises ConnectionFault beyond a limit."""

    __slots__ = ("_control_frames", "_early_resets", "_may_be_reset", "now")

    def __init__(self, limits: Limits, now: float):
        self.now = now
        """Of whatever is counted next."""
        self._control_frames = Bucket(limits.control_frames_per_s, now)
        self._early_resets = Bucket(limits.resets_per_s, now)
        self._may_be_reset = 0

    def control_frame(self, cost: int = 1) -> None:
        """A frame that carries nothing; `cost`: as so many of them."""
        if not self._control_frames.take(self.now, cost):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.CONTROL_FLOOD)

    def early_reset(self) -> None:
        """A request is taken back that was not answered."""
        if not self._early_resets.take(self.now):
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.RAPID_RESET)

    def stream_ended(self) -> None:
        """By us. Envoy sends a reset after each, which may come after our trailers."""
        self._may_be_reset += 1

    def late_reset(self) -> None:
        """Of a stream that we have ended."""
        if self._may_be_reset:
            self._may_be_reset -= 1
        else:
            self.control_frame()


class Bucket:
    """So many a second, and `_BURST_S` times as many at once."""

    __slots__ = ("_left", "_most", "_per_s", "_then")

    def __init__(self, per_s: float, now: float):
        self._per_s = per_s
        self._most = self._left = per_s * _BURST_S
        self._then = now

    def take(self, now: float, count: int = 1) -> bool:
        """Whether so many more are within the limit."""
        self._left = min(self._most, self._left + (now - self._then) * self._per_s) - count
        self._then = now
        return self._left >= 0
