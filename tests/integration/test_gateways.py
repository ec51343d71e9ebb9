"""Each gateway's side of the conversation, played against `picker serve` with the settings that docs/gateways.md names.

What each sends and expects: TLS with HTTP/2 by ALPN or plain text, body modes, trailers, filter metadata, how many
endpoints it takes, and whether it asks about the response at all.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import yaml
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker.simulation.process import Process, free_ports
from picker.simulation.stack import MODEL, Plan, Stack, _answers, _is_ready
from tests.integration.ext_proc import MODES, TRANSPORTS, body, headers, open_stream, response_headers
from tests.integration.traffic import until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
DESTINATION = "x-gateway-destination-endpoint"
FULL, BUFFERED = MODES.FULL_DUPLEX_STREAMED, MODES.BUFFERED
PIECE = 60_000


@dataclass(frozen=True)
class Gateway:
    """How a gateway speaks. `settings` are the picker's; `response`: which of its messages come after the pick."""

    settings: dict[str, Any]
    is_encrypted: bool = True
    mode: int = FULL
    response_mode: int = FULL
    response: Sequence[str] = ("headers", "body", "trailers")
    subset: bool = False
    takes_list: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    channel_per_request: bool = False


GATEWAYS = {
    "Envoy AI Gateway": Gateway({"tls": {}, "fallbacks": 0}, takes_list=False, headers={"x-ai-eg-model": MODEL}),
    "Istio": Gateway({"tls": {}}, subset=True),
    "agentgateway": Gateway({"tls": {}, "fallbacks": 0}, takes_list=False),
    "NGINX Gateway Fabric": Gateway(
        {"tls": {}, "fallbacks": 0}, takes_list=False, response=(), channel_per_request=True
    ),
    "GKE": Gateway({"tls": {}}, subset=True),
    "Envoy Gateway, EnvoyExtensionPolicy": Gateway(
        {}, is_encrypted=False, mode=BUFFERED, response_mode=MODES.NONE, response=()
    ),
    "Envoy AI Gateway, buffered": Gateway(
        {"tls": {}, "fallbacks": 0}, mode=BUFFERED, response_mode=BUFFERED, response=("headers", "body"),
        takes_list=False,
    ),
    "llm-d's standalone Envoy": Gateway({"fallbacks": 0}, is_encrypted=False, takes_list=False),
}  # fmt: skip


class Fleet(Stack):
    """Valkey, workers and an agent; pickers come with the tests."""

    async def start(self) -> None:
        await self.valkey.start()
        for worker, address in zip(self.workers, self.endpoints, strict=True):
            worker.start()
            await worker.wait_until(lambda url=f"http://{address}/health": _answers(url))  # type: ignore[misc]
        self._write("agent.yaml", self._agent_config() | {"listen": ""})
        self.agent.start()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet(Plan(workers=3)) as fleet:
        yield fleet


@dataclass
class Served:
    """A picker for one gateway. `health` and `metrics` are ports in plain text."""

    gateway: Gateway
    fleet: Fleet
    port: int
    health: int
    metrics: int

    async def channel(self) -> grpc.aio.Channel:
        if not self.gateway.is_encrypted:
            return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}")
        # Gateways do not verify the picker's certificate; Python's gRPC has to be told whom to trust.
        pem = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", self.port))
        return grpc.aio.secure_channel(f"localhost:{self.port}", grpc.ssl_channel_credentials(pem.encode()))

    async def metric(self, name: str) -> float:
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.metrics}/metrics")).text
        return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{name} "))

    async def is_idle(self) -> bool:
        return await self.metric("picker_inflight_requests") == 0 and await self.metric("picker_streams") == 0


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[(name, transport) for name in GATEWAYS for transport in TRANSPORTS],
    ids="-".join,
)
async def served(
    request: pytest.FixtureRequest, fleet: Fleet, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    name, transport = request.param
    tmp_path = tmp_path_factory.mktemp("picker")
    gateway, ports = GATEWAYS[name], free_ports(3)
    addresses = {key: f"127.0.0.1:{port}" for key, port in zip(("listen", "health", "metrics"), ports, strict=True)}
    settings = {**addresses, "redis": fleet.valkey.url, "transport": transport, "drain_s": 1.0, **gateway.settings}
    path = tmp_path / "picker.yaml"
    path.write_text(yaml.safe_dump(settings))
    process = Process("picker", [sys.executable, "-m", "picker", "serve", "--config", str(path)], tmp_path / "log")
    process.start()
    try:
        await process.wait_until(lambda: _is_ready(f"127.0.0.1:{ports[1]}"))
        one = Served(gateway, fleet, *ports)

        async def knows_workers() -> bool:
            return await one.metric("picker_workers_ready") == 3

        await until(knows_workers)
        yield one
    finally:
        await process.stop()


def chat(size: int) -> bytes:
    """A short chat in a large body: what counts here is what passes, not what it costs."""
    message = {"role": "user", "content": f"A question of {size} bytes"}
    return json.dumps({"model": MODEL, "messages": [message], "max_tokens": 2, "user": "x" * size}).encode()


def first_message(gateway: Gateway, subset: Sequence[str] | None) -> pb.ProcessingRequest:
    named = {"content_type": "application/json"} | {k.replace("-", "_"): v for k, v in gateway.headers.items()}
    message = headers(gateway.mode, **named)
    message.protocol_config.response_body_mode = gateway.response_mode  # type: ignore[assignment]
    if subset is not None:
        fields = message.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields
        hint = fields["x-gateway-destination-endpoint-subset"].list_value
        hint.SetInParent()
        for address in subset:
            hint.values.add(string_value=address)
    return message


@dataclass
class Exchange:
    """What came back: the endpoints, by header and by metadata, and the request's body, where it is passed on."""

    header: str
    metadata: str
    body: bytes


async def converse(served: Served, payload: bytes, subset: Sequence[str] | None = None) -> Exchange:
    gateway = served.gateway
    async with await served.channel() as channel:
        stream = open_stream(channel)
        await stream.write(first_message(gateway, subset))
        if gateway.mode == FULL:
            for start in range(0, len(payload), PIECE):
                await stream.write(body(payload[start : start + PIECE], end=False))
            await stream.write(body(b"", end=True))
            exchange = await _full(stream, len(payload))
        else:
            await _next(stream)
            await stream.write(body(payload))
            reply = await _next(stream)
            assert reply.WhichOneof("response") == "request_body", reply
            exchange = Exchange(*_endpoints(reply, reply.request_body.response), payload)
        await _respond(stream, gateway)
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
    return exchange


async def _next(stream: Any) -> pb.ProcessingResponse:
    """The next answer; what only asks a proxy for more time is none."""
    while (reply := await stream.read()).WhichOneof("response") is None:
        assert reply.HasField("override_message_timeout"), reply
    return reply  # type: ignore[no-any-return]


async def _full(stream: Any, size: int) -> Exchange:
    reply = await _next(stream)
    assert reply.WhichOneof("response") == "request_headers"
    found, passed, is_ended = _endpoints(reply, reply.request_headers.response), b"", False
    while not is_ended:
        streamed = (await stream.read()).request_body.response.body_mutation.streamed_response
        assert len(streamed.body) <= 62 << 10, "other data planes than Envoy take no more in one message"
        passed += streamed.body
        is_ended = streamed.end_of_stream
    assert len(passed) == size
    return Exchange(*found, passed)


def _endpoints(reply: pb.ProcessingResponse, common: pb.CommonResponse) -> tuple[str, str]:
    [option] = [each for each in common.header_mutation.set_headers if each.header.key == DESTINATION]
    assert not option.header.value, "Envoy drops what is not in raw_value"
    told = reply.dynamic_metadata.fields["envoy.lb"].struct_value.fields[DESTINATION].string_value
    return option.header.raw_value.decode(), told


async def _respond(stream: Any, gateway: Gateway) -> None:
    """The response, as far as the gateway shows it; each message has its answer."""
    for part in gateway.response:
        if part == "headers":
            await stream.write(response_headers(200))
        elif part == "body":
            text = b'{"usage": {"prompt_tokens": 5, "completion_tokens": 2}}'
            is_last = "trailers" not in gateway.response
            await stream.write(pb.ProcessingRequest(response_body=pb.HttpBody(body=text, end_of_stream=is_last)))
        else:
            await stream.write(pb.ProcessingRequest(response_trailers=pb.HttpTrailers()))
        reply = await stream.read()
        assert reply.WhichOneof("response") == f"response_{part}"
        if part == "body" and gateway.response_mode == FULL:
            assert reply.response_body.response.body_mutation.streamed_response.body == text


async def test_the_pick_is_told_twice_alike_and_the_body_passes(served: Served) -> None:
    for size in (2_000, 300_000):
        payload = chat(size)
        exchange = await converse(served, payload)
        assert exchange.body == payload
        endpoints = exchange.header.split(",")
        assert exchange.metadata == exchange.header
        assert set(endpoints) <= set(served.fleet.endpoints)
        assert len(endpoints) == (3 if served.gateway.takes_list else 1)
    await until(served.is_idle)


async def test_a_request_without_a_body_gets_a_pick_at_once(served: Served) -> None:
    async with await served.channel() as channel:
        stream = open_stream(channel)
        message = headers(served.gateway.mode, end=True, method="GET")
        await stream.write(message)
        reply = await asyncio.wait_for(_next(stream), 20)
        header, metadata = _endpoints(reply, reply.request_headers.response)
        assert header == metadata
        await stream.done_writing()
    await until(served.is_idle)


async def test_the_subset_is_obeyed_and_an_empty_one_refused(served: Served) -> None:
    if not served.gateway.subset:
        pytest.skip("sends no subset")
    only = served.fleet.endpoints[1]
    for _ in range(3):
        assert (await converse(served, chat(500), [only])).header == only
    async with await served.channel() as channel:
        stream = open_stream(channel)
        await stream.write(first_message(served.gateway, []))
        await stream.write(body(chat(500)))
        reply = await asyncio.wait_for(_next(stream), 20)
        assert reply.immediate_response.status.code == 503
    await until(served.is_idle)


async def test_many_at_once_on_one_connection_or_on_one_each(served: Served) -> None:
    answers = await asyncio.gather(*(converse(served, chat(1_000 + number)) for number in range(20)))
    assert {answer.header.split(",")[0] for answer in answers} == set(served.fleet.endpoints)
    await until(served.is_idle)


async def test_http2_is_agreed_upon_by_alpn_where_it_is_encrypted(served: Served) -> None:
    if not served.gateway.is_encrypted:
        pytest.skip("plain text")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.transport.abort()


async def test_probes_find_their_names_on_the_health_port(served: Served) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{served.health}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
