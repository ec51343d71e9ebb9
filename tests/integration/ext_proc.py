"""An ext_proc server with a scripted picker behind it, and a client that says what a proxy would say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from picker.config import Tls
from picker.extproc.actions import Pick
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.events import NotPicked, Picked
from picker.extproc.service import METHOD, ExtProcService
from picker.tls import credentials, ssl_context
from picker.transport.errors import Reason
from picker.transport.limits import Limits
from picker.transport.server import Http2Server

TRANSPORTS = ("grpcio", "http2")
"""Every test of the protocol runs on both."""
MODES = processing_mode_pb2.ProcessingMode
ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000")


@dataclass
class ScriptedPicker:
    """Picks the same endpoints for everybody, after `delay_s`; keeps count of what is placed and released."""

    delay_s: float = 0.0
    endpoints: tuple[str, ...] = ENDPOINTS
    answer: Picked | NotPicked | None = None
    picks: list[Pick] = field(default_factory=list)
    placed: int = 0
    released: list[int] = field(default_factory=list)
    tails: list[bytes] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    ignored_events: list[tuple[str, str]] = field(default_factory=list)

    async def pick(self, wanted: Pick) -> Picked | NotPicked:
        self.picks.append(wanted)
        await asyncio.sleep(self.delay_s)
        if self.answer is not None:
            return self.answer
        self.placed += 1
        return Picked(self.endpoints, self.placed)

    def replied(self, placement: Any) -> None:
        pass

    def first_byte(self, placement: Any, status: int, served: str) -> None:
        pass

    def answered(self, placement: Any, tail: bytes) -> None:
        self.tails.append(tail)

    def release(self, placement: Any, is_unfinished: bool) -> None:
        self.released.append(placement)

    def refused(self, reason: str) -> None:
        self.refusals.append(reason)

    def ignored(self, event: str, state: str) -> None:
        self.ignored_events.append((event, state))


@dataclass
class Served:
    """The server's address and insides."""

    address: str
    picker: ScriptedPicker
    service: ExtProcService
    budget: ByteBudget

    def client(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address)


@contextlib.asynccontextmanager
async def served(
    transport: str, picker: ScriptedPicker | None = None, settings: Settings | None = None
) -> AsyncIterator[Served]:
    """A server on a free port; it is empty again on exit, or the test fails."""
    picker, budget = picker or ScriptedPicker(), ByteBudget(1 << 20)
    service = ExtProcService(picker, picker, settings or Settings(), budget)
    async with listening(transport, service, budget) as address:
        yield Served(address, picker, service, budget)
        async with asyncio.timeout(10):
            while service.streams:
                await asyncio.sleep(0.01)
        assert budget.taken == 0
        assert sorted(picker.released) == list(range(1, picker.placed + 1))


@contextlib.asynccontextmanager
async def listening(
    transport: str,
    service: ExtProcService,
    budget: ByteBudget,
    more: Sequence[grpc.GenericRpcHandler[Any, Any]] = (),
    tls: Tls | None = None,
) -> AsyncIterator[str]:
    """The service, and more services, on a free port. A peer that does what has a limit fails the test."""
    if transport == "grpcio":
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        server.add_generic_rpc_handlers([service.handler(), *more])
        here = "127.0.0.1:0"
        port = server.add_secure_port(here, credentials(tls)) if tls else server.add_insecure_port(here)
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(0)
        return
    misdeeds: list[Reason] = []
    own = Http2Server(Limits(), budget, misdeeds.append)
    own.add_method(METHOD, service.open)
    own.add_generic_rpc_handlers(more)
    port = await own.start("127.0.0.1", 0, ssl_context(tls) if tls else None)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await own.stop(0)
    assert misdeeds == []


Stream = grpc.aio.StreamStreamCall[pb.ProcessingRequest, pb.ProcessingResponse]


def open_stream(channel: grpc.aio.Channel) -> Stream:
    method = channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)
    return method()


def headers(
    mode: int = MODES.FULL_DUPLEX_STREAMED, *, end: bool = False, method: str = "POST", **more: str
) -> pb.ProcessingRequest:
    """The first message of a stream."""
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(end_of_stream=end))
    message.protocol_config.request_body_mode = mode  # type: ignore[assignment]
    named = {":method": method, ":path": "/v1/chat/completions"} | {k.replace("_", "-"): v for k, v in more.items()}
    for name, value in named.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    return message


def body(data: bytes, end: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def response_headers(status: int = 200) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest(response_headers=pb.HttpHeaders())
    message.response_headers.headers.headers.add(key=":status", raw_value=str(status).encode())
    return message
