"""A connection on asyncio: bytes from the socket to `Connection`, its events to the handlers of the calls."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

import structlog

from picker.transport.calls import Handler, Open
from picker.transport.connection import Connection
from picker.transport.errors import Reason, Status
from picker.transport.events import Event, HalfClosed, Misbehaved, NoRoom, Opened, Received
from picker.transport.headers import RequestHead
from picker.transport.limits import Limits
from picker.transport.outbox import Budget
from picker.transport.streams import Stream

log = structlog.get_logger()

_MOST_UNWRITTEN_BYTES = 1 << 20
"""What may wait in a socket's buffer; beyond it we read no more, so that a peer cannot make us say more either."""


class Host:
    """What the connections of a server share."""

    def __init__(
        self, limits: Limits, budget: Budget, count: Callable[[Reason], None], find: Callable[[str], Open | None]
    ):
        """`count` is told what peers do that they should not; `find` knows the methods by their paths."""
        self.limits = limits
        self.budget = budget
        self.count = count
        self.find = find
        self.connections: set[GrpcProtocol] = set()


class GrpcProtocol(asyncio.Protocol):
    """One connection of a peer."""

    def __init__(self, host: Host):
        self._host = host
        self._now = asyncio.get_running_loop().time
        self._connection = Connection(host.limits, host.budget, self._now())
        self._stuck_since: float | None = None
        self._is_reading = False

    # From asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports are asyncio's by their methods, not by inheritance.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(_MOST_UNWRITTEN_BYTES)
        # asyncio leaves it out for sockets that it has not made itself.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._host.connections) >= self._host.limits.max_connections:
            self._host.count(Reason.TOO_MANY_CONNECTIONS)
            return self._transport.abort()
        self._host.connections.add(self)
        self._flush()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._is_reading = True
        self._handle(self._connection.receive(data, self._now()))
        self._is_reading = False
        self._flush()

    def pause_writing(self) -> None:  # noqa: D102
        self._stuck_since = self._now()
        self._connection.pause()
        self._transport.pause_reading()

    def resume_writing(self) -> None:  # noqa: D102
        self._stuck_since = None
        self._transport.resume_reading()
        self._connection.go_on()
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: D102
        self._host.connections.discard(self)
        self._handle(self._connection.lose())

    # From the server.

    def sweep(self, now: float) -> None:
        """Ends what waits for too long."""
        if self._stuck_since is not None and now - self._stuck_since > self._host.limits.stall_s:
            self._host.count(Reason.STALLED)
            return self._transport.abort()
        self._handle(self._connection.sweep(now))
        self._flush()

    def drain(self) -> None:
        """Lets the calls that are open end, and takes no more."""
        self._connection.drain(self._now())
        self._flush()

    def close(self) -> None:
        """Ends all calls and the connection."""
        self._handle(self._connection.close())
        self._flush()

    def abort(self) -> None:
        """Lets go of a peer that does not take our last bytes."""
        self._transport.abort()

    # From the calls.

    @property
    def connection(self) -> Connection:
        """The protocol's state."""
        return self._connection

    def flush(self) -> None:
        """Writes what has been said. While bytes are read that waits: one write for all answers."""
        if not self._is_reading:
            self._flush()

    def end(self, stream: Stream, status: Status, text: str) -> None:
        """Ends a call by ourselves, without its handler, which is told."""
        self._connection.finish(stream, status, text)
        self._tell_end(stream)
        self.flush()

    def _flush(self) -> None:
        connection = self._connection
        if output := connection.take_output():
            self._transport.write(output)
        if connection.is_over or connection.is_drained:
            self._transport.close()

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            try:
                # Most are messages.
                if type(event) is Received and (call := event.stream.call) is not None:
                    call.handler.message(event.message)
                else:
                    self._on_event(event)
            except Exception as error:
                # A defect of ours ends one call, and not the connection with all the others.
                log.error("call_failed", error=type(error).__name__)
                if not isinstance(event, Misbehaved):
                    self.end(event.stream, Status.INTERNAL, "")

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Misbehaved):
            self._host.count(event.reason)
        elif isinstance(event, Opened):
            self._open(event.stream, event.head)
        elif event.stream.call is None:
            pass  # answered, while more was on its way
        elif isinstance(event, HalfClosed):
            event.stream.call.handler.half_closed()
        elif isinstance(event, NoRoom):
            event.stream.call.handler.no_room()
        else:
            self._tell_end(event.stream)

    def _open(self, stream: Stream, head: RequestHead) -> None:
        method = self._host.find(head.path)
        if method is None:
            return self._connection.finish(stream, Status.UNIMPLEMENTED, "there is no such method")
        stream.call = call = _Call(self, stream, head.timeout_s)
        call.handler = method(call)

    def _tell_end(self, stream: Stream) -> None:
        call, stream.call = stream.call, None
        if call is not None:
            call.stop_timer()
            call.handler.ended()


class _Call:
    """What a handler has in hand (`picker.transport.calls.Call`)."""

    __slots__ = ("_connection", "_protocol", "_stream", "_timer", "handler")

    handler: Handler

    def __init__(self, protocol: GrpcProtocol, stream: Stream, timeout_s: float | None):
        self._protocol = protocol
        self._connection = protocol.connection
        self._stream = stream
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(timeout_s, self._be_late)

    def send(self, message: bytes) -> None:
        self._connection.send(self._stream, message)
        self._protocol.flush()

    def finish(self, status: int = Status.OK, text: str = "") -> None:
        self.stop_timer()
        self._stream.call = None
        self._connection.finish(self._stream, status, text)
        self._protocol.flush()

    def hold(self) -> None:
        self._connection.hold(self._stream)

    def resume(self) -> None:
        self._connection.resume(self._stream)
        self._protocol.flush()

    def stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _be_late(self) -> None:
        self._protocol.end(self._stream, Status.DEADLINE_EXCEEDED, "deadline exceeded")
