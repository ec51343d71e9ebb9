"""A gRPC port, on either transport: `transport: grpcio | http2` in the configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc
import msgspec

from picker.config import Config, Limits, Tls, host_and_port
from picker.extproc.service import METHOD, ExtProcService
from picker.listening import listen
from picker.tls import credentials, ssl_context
from picker.transport import limits as transport_limits
from picker.transport.errors import Reason
from picker.transport.outbox import Budget
from picker.transport.server import Http2Server

_MESSAGE_OVERHEAD = 1 << 20


class Port(Protocol):
    """A gRPC server with one address. `grpc.aio`'s services and generated code can be added to it."""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler[Any, Any]]) -> None: ...  # noqa: D102
    def add_registered_method_handlers(self, service: str, handlers: Any) -> None: ...  # noqa: D102
    def add_ext_proc(self, service: ExtProcService) -> None: ...  # noqa: D102

    async def start(self) -> None:
        """Listens. Raises OSError where the port is taken, and BadCertificate."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls and ends those that are open after `grace_s`. May be called again to hurry."""
        ...


def port(config: Config, address: str, tls: Tls | None, budget: Budget, count: Callable[[Reason], None]) -> Port:
    """On the transport that the configuration names; `budget` and `count` are for our own."""
    if config.transport == "grpcio":
        return GrpcioPort(address, tls, config.limits)
    return Http2Port(address, tls, Http2Server(http2_limits(config), budget, count))


class GrpcioPort:
    """On grpcio's C core."""

    def __init__(self, address: str, tls: Tls | None, limits: Limits):
        self._address = address
        self._tls = tls
        self._server = grpc.aio.server(options=grpc_options(limits))
        self.add_generic_rpc_handlers = self._server.add_generic_rpc_handlers
        # The stubs are older than this method.
        self.add_registered_method_handlers = self._server.add_registered_method_handlers  # type: ignore[attr-defined]
        self.stop = self._server.stop

    def add_ext_proc(self, service: ExtProcService) -> None:
        """As one more service."""
        self._server.add_generic_rpc_handlers((service.handler(),))

    async def start(self) -> None:
        """Raises OSError, BadCertificate."""
        await listen(self._server, self._address, credentials(self._tls) if self._tls else None)


class Http2Port:
    """On `picker.transport`."""

    def __init__(self, address: str, tls: Tls | None, server: Http2Server):
        self._address = address
        self._tls = tls
        self._server = server
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers
        self.add_registered_method_handlers = server.add_registered_method_handlers
        self.stop = server.stop

    def add_ext_proc(self, service: ExtProcService) -> None:
        """Without a task for each stream."""
        self._server.add_method(METHOD, service.open)

    async def start(self) -> None:
        """Raises OSError, BadCertificate."""
        await self._server.start(*host_and_port(self._address), ssl_context(self._tls) if self._tls else None)


def http2_limits(config: Config) -> transport_limits.Limits:
    """Those of peers, and those that grpcio has too."""
    return transport_limits.Limits(
        **msgspec.structs.asdict(config.http2),
        max_streams=config.limits.max_streams,
        max_message_bytes=config.limits.max_body_bytes + _MESSAGE_OVERHEAD,
        keepalive_s=config.limits.keepalive_s,
    )


def grpc_options(limits: Limits) -> list[tuple[str, int]]:
    """Channel arguments of the gRPC server."""
    keepalive_ms = round(limits.keepalive_s * 1000)
    return [
        # A second picker started on this port by mistake must fail, not take a share of the traffic.
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", limits.max_body_bytes + _MESSAGE_OVERHEAD),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.max_streams),
        # grpcio's default of 1,000 resets streams at random beyond it.
        ("grpc.server.max_pending_requests", limits.max_streams),
        ("grpc.server.max_pending_requests_hard_limit", 2 * limits.max_streams),
        # A proxy whose machine is gone closes nothing: its requests would stay in the books. A ping that is out has a
        # timeout of its own, 60 s by default, and only two are sent on a connection without data.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms),
        ("grpc.http2.ping_timeout_ms", keepalive_ms),
        ("grpc.http2.max_pings_without_data", 0),
    ]
