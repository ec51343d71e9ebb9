"""The endpoints that Envoy is told."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2

from picker.extproc.eds import EndpointDiscovery


class Envoy:
    """One subscription: what Envoy asks for, and what it is told."""

    def __init__(self) -> None:
        self.asks: asyncio.Queue[list[str] | None] = asyncio.Queue()
        self.told: asyncio.Queue[discovery_pb2.DiscoveryResponse] = asyncio.Queue()

    async def requests(self) -> AsyncIterator[discovery_pb2.DiscoveryRequest]:
        while (names := await self.asks.get()) is not None:
            yield discovery_pb2.DiscoveryRequest(resource_names=names)

    async def write(self, response: discovery_pb2.DiscoveryResponse) -> None:
        self.told.put_nowait(response)

    async def next(self) -> dict[str, list[tuple[str, int]]]:
        response = await asyncio.wait_for(self.told.get(), 10)
        found = {}
        for resource in response.resources:
            assignment = endpoint_pb2.ClusterLoadAssignment()
            assert resource.Unpack(assignment)
            sockets = [each.endpoint.address.socket_address for each in assignment.endpoints[0].lb_endpoints]
            found[assignment.cluster_name] = [(socket.address, socket.port_value) for socket in sockets]
        return found


class Subscribed:
    """Runs a subscription against a list of endpoints that can be changed."""

    def __init__(self, endpoints: tuple[str, ...] | None):
        self.endpoints = endpoints
        self.envoy = Envoy()

    async def __aenter__(self) -> "Subscribed":
        discovery = EndpointDiscovery(lambda: self.endpoints)
        self._task = asyncio.ensure_future(discovery._stream(self.envoy.requests(), self.envoy))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.envoy.asks.put_nowait(None)
        await asyncio.wait_for(self._task, 10)


async def test_a_cluster_is_told_its_endpoints_and_each_change() -> None:
    async with Subscribed(("10.0.0.1:80", "[fd00::1]:81")) as subscribed:
        subscribed.envoy.asks.put_nowait(["workers"])
        assert await subscribed.envoy.next() == {"workers": [("10.0.0.1", 80), ("fd00::1", 81)]}
        subscribed.endpoints = ("10.0.0.2:80",)
        assert await subscribed.envoy.next() == {"workers": [("10.0.0.2", 80)]}
        subscribed.endpoints = ()
        assert await subscribed.envoy.next() == {"workers": []}


async def test_nothing_is_said_until_the_fleet_is_known() -> None:
    async with Subscribed(None) as subscribed:
        subscribed.envoy.asks.put_nowait(["workers"])
        await asyncio.sleep(0.3)
        assert subscribed.envoy.told.empty()
        subscribed.endpoints = ("10.0.0.1:80",)
        assert await subscribed.envoy.next() == {"workers": [("10.0.0.1", 80)]}


async def test_nothing_is_said_twice() -> None:
    async with Subscribed(("10.0.0.1:80",)) as subscribed:
        subscribed.envoy.asks.put_nowait(["workers"])
        await subscribed.envoy.next()
        subscribed.envoy.asks.put_nowait(["workers"])  # Envoy acknowledges
        await asyncio.sleep(0.3)
        assert subscribed.envoy.told.empty()
        subscribed.envoy.asks.put_nowait(["workers", "others"])
        assert set(await subscribed.envoy.next()) == {"workers", "others"}


@pytest.mark.parametrize(
    "endpoint",
    ["worker-1:80", "10.0.0.1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:0", "10.0.0.1:70000", "[fd00::1]", "fd00::1:80"],
)
async def test_an_endpoint_that_envoy_would_refuse_does_not_take_the_others_down(endpoint: str) -> None:
    async with Subscribed((endpoint, "10.0.0.2:80")) as subscribed:
        subscribed.envoy.asks.put_nowait(["workers"])
        assert await subscribed.envoy.next() == {"workers": [("10.0.0.2", 80)]}
