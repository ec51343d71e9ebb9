"""Listens, and ends in an orderly way. Takes services as `grpc.aio.Server` does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from picker.transport import servicers
from picker.transport.calls import Open
from picker.transport.errors import Reason
from picker.transport.limits import Limits
from picker.transport.outbox import Budget
from picker.transport.protocol import GrpcProtocol, Host

_BACKLOG = 1024
_TICK_S = 0.25
"""How late it may be noticed that something has waited for too long."""
_POLL_S = 0.02
_FAREWELL_S = 1.0
"""For peers to take the last bytes."""


class Http2Server:
    """gRPC on one port."""

    def __init__(self, limits: Limits, budget: Budget, count: Callable[[Reason], None]):
        """`budget`: of unfinished messages and unsent answers. `count` is told what peers do that they should not."""
        self._host = Host(limits, budget, count, self._find)
        self._methods: dict[str, Open] = {}
        self._generic: list[grpc.GenericRpcHandler[Any, Any]] = []
        self._server: asyncio.Server | None = None
        self._tick: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Http2Server {self.connections} connections>"

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._host.connections)

    def add_method(self, path: str, open_call: Open) -> None:
        """Calls of `/service/method` are answered by this."""
        self._methods[path] = open_call

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None:
        """Services that were written for grpc.aio."""
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The code that grpcio generates adds each service in two forms; the generic one is enough."""

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listens; returns the port, which matters where it was 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: GrpcProtocol(self._host),
            sock=_listening(host, port),
            ssl=tls,
            ssl_handshake_timeout=self._host.limits.handshake_s if tls else None,
            backlog=_BACKLOG,
        )
        self._sweep()
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, waits so long for those that are open, and ends them. May be called again to hurry."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._host.connections):
            connection.drain()
        await self._are_gone(grace_s)
        for connection in list(self._host.connections):
            connection.close()
        await self._are_gone(_FAREWELL_S)
        for connection in list(self._host.connections):
            connection.abort()
        if self._tick is not None:
            self._tick.cancel()

    def _find(self, path: str) -> Open | None:
        return self._methods.get(path) or servicers.find(self._generic, path)

    async def _are_gone(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._host.connections:
                    await asyncio.sleep(_POLL_S)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in list(self._host.connections):
            connection.sweep(loop.time())
        self._tick = loop.call_later(_TICK_S, self._sweep)


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens; on all addresses of both families where the host is "::", as grpcio has it."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=_BACKLOG)
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=host == "::")
