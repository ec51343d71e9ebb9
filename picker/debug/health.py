"""gRPC health under the names that gateways probe, and reflection for people with grpcurl."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

LIVENESS = "liveness"
_READINESS = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


class Port(Protocol):
    """What services can be added to (`picker.ports.Port`)."""

    def add_generic_rpc_handlers(self, handlers: Any) -> None: ...  # noqa: D102
    def add_registered_method_handlers(self, service: str, handlers: Any) -> None: ...  # noqa: D102


class Health:
    """`liveness` serves from the start; readiness, in all its names, while requests should come here."""

    def __init__(self) -> None:
        self._servicer = aio.HealthServicer()

    async def add_to(self, port: Port) -> None:
        """Registers the service; not ready yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, port)
        await self._servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)

    async def set_ready(self, ready: bool) -> None:
        """Tells those who check and those who watch."""
        serving = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in _READINESS:
            await self._servicer.set(name, serving)

    async def set_detail(self, name: str, is_well: bool) -> None:
        """What operators may ask for by its name. Readiness does not heed it."""
        serving = health_pb2.HealthCheckResponse.SERVING if is_well else health_pb2.HealthCheckResponse.NOT_SERVING
        await self._servicer.set(name, serving)


def add_reflection(port: Port, services: Iterable[str]) -> None:
    """Lets generic clients list and describe the services on this port."""
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(reflection.aio.ReflectionServicer(names), port)  # type: ignore[attr-defined]
