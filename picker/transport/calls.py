"""What a service sees of a call: who answers it, and what it may do. No socket, no frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Call(Protocol):
    """The transport's side of one call."""

    def send(self, message: bytes) -> None:
        """Answers with a message. After the end it does nothing."""
        ...

    def finish(self, status: int = 0, text: str = "") -> None:
        """Ends the call with a gRPC status; nothing more will be told about it."""
        ...

    def hold(self) -> None:
        """The peer is to send no more, once what is on its way has come."""
        ...

    def resume(self) -> None:
        """The peer may send again."""
        ...


class Handler(Protocol):
    """The service's side of one call. Called from the event loop, and to return at once."""

    def message(self, data: bytes) -> None:
        """A message has come."""
        ...

    def half_closed(self) -> None:
        """No more messages will come."""
        ...

    def no_room(self) -> None:
        """A message is lost, since there is no room to hold it; no more will come. To be answered, and finished."""
        ...

    def ended(self) -> None:
        """The call is over, and not because of `finish`. The last that is told."""
        ...


Open = Callable[[Call], Handler]
"""Begins to answer a call."""
