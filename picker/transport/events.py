"""What a connection tells whoever runs it."""

from __future__ import annotations

from typing import NamedTuple

from picker.transport.errors import Reason
from picker.transport.headers import RequestHead
from picker.transport.streams import Stream

# Named tuples: a request makes half a dozen, and they cost half of what a frozen dataclass does.


class Opened(NamedTuple):
    """A call has begun."""

    stream: Stream
    head: RequestHead


class Received(NamedTuple):
    """A message of a call, without its prefix."""

    stream: Stream
    message: bytes


class HalfClosed(NamedTuple):
    """No more messages will come; answers may go on."""

    stream: Stream


class NoRoom(NamedTuple):
    """A message of a call is lost for want of room, and what follows it; the call may still be answered."""

    stream: Stream


class Ended(NamedTuple):
    """A call is over before we have finished it: reset by the peer, lost with the connection, or refused by a limit."""

    stream: Stream


class Misbehaved(NamedTuple):
    """The peer did something that has a limit; whatever follows from it has been done."""

    reason: Reason


Event = Opened | Received | HalfClosed | NoRoom | Ended | Misbehaved
