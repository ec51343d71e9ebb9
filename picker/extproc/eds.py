"""The endpoint discovery service: tells Envoy the workers, so that its own balancing works when we do not.

State of the world (`StreamEndpoints`): each response lists all endpoints of a cluster. Envoy keeps the last one while
we are away. It must never be told an empty list just because we have not read the fleet yet: that would take away the
endpoints that it still knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import structlog
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from envoy.service.endpoint.v3 import eds_pb2

from picker.fleet.endpoints import canonical

# Named by its descriptor, which reflection can only describe where it has been imported.
SERVICE: str = eds_pb2.DESCRIPTOR.services_by_name["EndpointDiscoveryService"].full_name
_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_POLL_S = 0.1
_MOST_NAMES = 100
"""Clusters that one Envoy may ask for; each gets a copy of the list."""

log = structlog.get_logger()

Endpoints = Callable[[], tuple[str, ...] | None]
"""The endpoints that may be used, or None where they are not known yet."""


class EndpointDiscovery:
    """Streams the workers' endpoints under whatever cluster name Envoy asks for."""

    def __init__(self, endpoints: Endpoints):
        self._endpoints = endpoints

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """To be added to a server."""
        method = grpc.stream_stream_rpc_method_handler(
            self._stream,
            discovery_pb2.DiscoveryRequest.FromString,
            discovery_pb2.DiscoveryResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"StreamEndpoints": method})

    async def _stream(self, requests: AsyncIterator[discovery_pb2.DiscoveryRequest], context: Any) -> None:
        names: set[str] = set()
        async with asyncio.TaskGroup() as tasks:
            push = tasks.create_task(self._push(names, context), name="eds-push")
            async for request in requests:
                names.update(request.resource_names[: _MOST_NAMES - len(names)])
                if request.HasField("error_detail"):
                    log.warning("endpoints_refused_by_envoy", reason=request.error_detail.message[:200])
            push.cancel()

    async def _push(self, names: set[str], context: Any) -> None:
        sent: tuple[object, object] | None = None
        version = 0
        while True:
            endpoints = self._endpoints()
            current = (endpoints, frozenset(names))
            if names and endpoints is not None and current != sent:
                version += 1
                await context.write(_response(names, endpoints, str(version)))
                sent = current
            await asyncio.sleep(_POLL_S)


def _response(names: set[str], endpoints: tuple[str, ...], version: str) -> discovery_pb2.DiscoveryResponse:
    response = discovery_pb2.DiscoveryResponse(version_info=version, nonce=version, type_url=_TYPE)
    for name in sorted(names):
        response.resources.add().Pack(_assignment(name, endpoints))
    return response


def _assignment(name: str, endpoints: tuple[str, ...]) -> endpoint_pb2.ClusterLoadAssignment:
    assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    locality = assignment.endpoints.add()
    for endpoint in endpoints:
        host, _, port = (canonical(endpoint) or "").rpartition(":")
        if not port.isdecimal():
            continue  # Envoy refuses the whole list for one host name, or one port that is none
        address = locality.lb_endpoints.add().endpoint.address.socket_address
        address.address, address.port_value = host.strip("[]"), int(port)
    return assignment
