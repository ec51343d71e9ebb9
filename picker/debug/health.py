"""gRPC health under the names that gateways probe, and reflection for people with grpcurl."""

from __future__ import annotations

from collections.abc import Iterable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio  # type: ignore[attr-defined]
from grpc_reflection.v1alpha import reflection

LIVENESS = "liveness"
_READINESS = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


class Health:
    """`liveness` serves from the start; readiness, in all its names, while requests should come here."""

    def __init__(self) -> None:
        self._servicer = aio.HealthServicer()

    async def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service; not ready yet."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
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


def add_reflection(server: grpc.aio.Server, services: Iterable[str]) -> None:
    """Lets generic clients list and describe the services on this port."""
    names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
