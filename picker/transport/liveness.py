"""Whether a peer has greeted us, and whether it still is there (RFC 9113 sections 3.4 and 6.7)."""

from __future__ import annotations

from picker.transport.errors import ConnectionFault, ErrorCode, Reason
from picker.transport.frames import FrameType, frame
from picker.transport.limits import Limits

_PAYLOAD = b"keep-alv"


class Liveness:
    """One connection's. A proxy whose machine is gone closes nothing, and its requests would stay in the books."""

    __slots__ = ("_asked", "_began", "_heard", "_limits", "has_greeted", "heard_at")

    def __init__(self, limits: Limits, now: float):
        self._limits = limits
        self._began = self._heard = now
        self._asked: float | None = None
        self.has_greeted = False
        self.heard_at: float | None = None
        """When something has come last, whatever it is; None where nothing has since the last check."""

    def check(self, now: float) -> bytes:
        """A ping to send, or nothing. Raises ConnectionFault where the peer is gone, or nobody we know."""
        if self.heard_at is not None:
            self._heard, self._asked, self.heard_at = self.heard_at, None, None
        if not self.has_greeted:
            if now - self._began > self._limits.handshake_s:
                raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, Reason.HANDSHAKE_LATE)
        elif self._asked is not None:
            if now - self._asked > self._limits.keepalive_s:
                raise ConnectionFault(ErrorCode.NO_ERROR, Reason.SILENT)
        elif now - self._heard > self._limits.keepalive_s:
            self._asked = now
            return frame(FrameType.PING, 0, 0, _PAYLOAD)
        return b""
