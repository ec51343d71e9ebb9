"""A real Envoy with one listener for each body mode, our ext_proc service in this process, and upstreams that echo."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from picker import envoy_config
from picker.config import Tls
from picker.extproc.access_log import AccessLog, Outcome
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.eds import EndpointDiscovery
from picker.extproc.service import ExtProcService
from picker.simulation.process import Process, free_ports
from picker.simulation.stack import ENVOY_FLAGS, envoy_binary
from picker.transport.calls import Call, Handler
from tests.integration.ext_proc import ScriptedPicker, listening

_RESPONSE = {"response_header_mode": "SEND", "response_trailer_mode": "SEND"}
_FULL = {"request_trailer_mode": "SEND", **_RESPONSE}
MODES: dict[str, dict[str, Any]] = {
    "none": {"request_body_mode": "NONE", **_RESPONSE},
    "buffered": {"request_body_mode": "BUFFERED", **_RESPONSE},
    "buffered-trailers": {"request_body_mode": "BUFFERED", **_FULL},
    "buffered-partial": {"request_body_mode": "BUFFERED_PARTIAL", **_RESPONSE},
    "streamed": {"request_body_mode": "STREAMED", **_RESPONSE},
    "streamed-unasked": {"request_body_mode": "STREAMED", **_FULL},
    "full-duplex": {"request_body_mode": "FULL_DUPLEX_STREAMED", **_FULL},
    "response-streamed": {"request_body_mode": "BUFFERED", "response_body_mode": "STREAMED", **_RESPONSE},
    "response-buffered": {"request_body_mode": "BUFFERED", "response_body_mode": "BUFFERED", **_RESPONSE},
    "both-full-duplex": {
        "request_body_mode": "FULL_DUPLEX_STREAMED", "response_body_mode": "FULL_DUPLEX_STREAMED", **_FULL,
    },
}  # fmt: skip
HANGING: list[str] = []
"""Names of requests to `/hang`, by attempt; and of those that were given up."""
LEFT: list[str] = []
WITH_BODY = [name for name in MODES if name not in ("none", "streamed")]
"""The modes in which the pick sees the body."""


async def echo(request: Request) -> Response:
    """Tells what came in.

    `/fail/<port>` answers 503 on that port, `/hang` nothing until its client leaves, `/gzip` a body that is no business
    of ours, `/answer` the request's own body in pieces of `every` bytes.
    """
    try:
        body = await request.body()
    except ClientDisconnect:
        return Response(status_code=499)
    if request.url.path == "/hang":
        return await _hang(request)
    port = request.scope["server"][1]
    if request.url.path == f"/fail/{port}":
        return Response("busy", 503, media_type="text/plain")
    if request.url.path == "/gzip":
        return Response(body, int(request.query_params.get("status", 200)), headers={"content-encoding": "gzip"})
    if request.url.path == "/stream":
        pieces = int(request.query_params["pieces"])
        return StreamingResponse(_pieces(pieces), media_type="text/event-stream")
    if request.url.path == "/answer":
        every = int(request.query_params.get("every", 0)) or len(body)
        pieces = [body[start : start + every] for start in range(0, len(body), every)]
        return StreamingResponse(_each(pieces), media_type=request.headers["content-type"])
    told = {
        "port": port,
        "path": request.url.path,
        "bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
        "headers": [[name.decode("latin-1"), value.decode("latin-1")] for name, value in request.headers.raw],
    }
    return Response(json.dumps(told), media_type="application/json")


async def _hang(request: Request) -> Response:
    HANGING.append(request.query_params["name"])
    while not await request.is_disconnected():
        await asyncio.sleep(0.01)
    LEFT.append(request.query_params["name"])
    return Response(status_code=499)


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)


async def _pieces(count: int) -> AsyncIterator[bytes]:
    for number in range(count):
        yield f"data: {number}\n\n".encode()
        await asyncio.sleep(0.001)


@dataclass
class Told:
    """What an upstream says that it received."""

    port: int
    bytes: int
    sha256: str
    headers: list[list[str]]
    path: str

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass
class RealEnvoy:
    """Everything that a test may want to look at."""

    urls: dict[str, str]
    upstreams: list[int]
    picker: ScriptedPicker
    service: ExtProcService
    streams: list[list[tuple[str, bytes]]] = field(default_factory=list)
    """For each stream its messages: ("in" or "out", bytes)."""
    outcomes: list[Outcome] = field(default_factory=list)

    async def idle(self) -> None:
        """Waits until no stream is open and every placement is released."""
        async with asyncio.timeout(20):
            while self.service.streams or len(self.picker.released) < self.picker.placed:
                await asyncio.sleep(0.01)
        assert sorted(self.picker.released) == list(range(1, self.picker.placed + 1))


class _Recording(ExtProcService):
    """Notes every message in both directions."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.recording: list[list[tuple[str, bytes]]] = []

    async def _process(self, requests: object, context: Any) -> None:
        self.recording.append([])
        await super()._process(requests, _Tee(context, self.recording[-1]))

    def open(self, call: Call) -> Handler:
        self.recording.append([])
        return _HandlerTee(super().open(_CallTee(call, self.recording[-1])), self.recording[-1])


class _CallTee:
    def __init__(self, call: Call, recording: list[tuple[str, bytes]]):
        self._call = call
        self._recording = recording
        self.finish, self.hold, self.resume = call.finish, call.hold, call.resume

    def send(self, message: bytes) -> None:
        self._recording.append(("out", message))
        self._call.send(message)


class _HandlerTee:
    def __init__(self, handler: Handler, recording: list[tuple[str, bytes]]):
        self._handler = handler
        self._recording = recording
        self.half_closed, self.no_room, self.ended = handler.half_closed, handler.no_room, handler.ended

    def message(self, data: bytes) -> None:
        self._recording.append(("in", data))
        self._handler.message(data)


class _Tee:
    def __init__(self, context: Any, recording: list[tuple[str, bytes]]):
        self._context = context
        self._recording = recording
        self.abort = context.abort

    async def read(self) -> Any:
        data = await self._context.read()
        if isinstance(data, bytes):
            self._recording.append(("in", data))
        return data

    async def write(self, data: bytes) -> None:
        self._recording.append(("out", data))
        await self._context.write(data)


@contextlib.asynccontextmanager
async def real_envoy(
    transport: str, settings: Settings | None = None, tls: Tls | None = None
) -> AsyncIterator[RealEnvoy]:
    """Envoy, two upstreams and the service; `urls` has one for each mode. `tls`: between Envoy and the service."""
    async with contextlib.AsyncExitStack() as stack:
        upstreams = [await stack.enter_async_context(_upstream()) for _ in range(2)]
        endpoints = tuple(f"127.0.0.1:{port}" for port in upstreams)
        picker = ScriptedPicker()
        picker.endpoints = endpoints
        budget = ByteBudget(1 << 30)
        service = _Recording(picker, picker, settings or Settings(), budget)
        outcomes: list[Outcome] = []
        more = (EndpointDiscovery(lambda: endpoints).handler(), AccessLog(outcomes.append).handler())
        address = await stack.enter_async_context(listening(transport, service, budget, more, tls))
        urls = await stack.enter_async_context(_envoy(address, tls is not None))
        yield RealEnvoy(urls, upstreams, picker, service, service.recording, outcomes)


@contextlib.asynccontextmanager
async def _upstream() -> AsyncIterator[int]:
    methods = ["GET", "HEAD", "OPTIONS", "POST", "PUT"]
    app = Starlette(routes=[Route("/{path:path}", echo, methods=methods)])
    [port] = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="error", lifespan="off"))
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.ensure_future(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield port
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def _envoy(picker: str, is_encrypted: bool) -> AsyncIterator[dict[str, str]]:
    ports = free_ports(len(MODES) + 1)
    admin = f"127.0.0.1:{ports.pop()}"
    config = envoy_config.load("fail-closed", listen="127.0.0.1:1", admin=admin, picker=picker)
    [template] = config["static_resources"]["listeners"]
    config["static_resources"]["listeners"] = [
        _listener(template, name, port) for name, port in zip(MODES, ports, strict=True)
    ]
    if is_encrypted:
        next(c for c in config["static_resources"]["clusters"] if c["name"] == "picker")["transport_socket"] = _TLS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "envoy.json"
        path.write_text(json.dumps(config))
        process = Process("envoy", [envoy_binary(), *ENVOY_FLAGS, "-c", str(path)], Path(folder) / "log")
        process.start()
        try:
            await process.wait_until(lambda: _ready(admin))
            yield {name: f"http://127.0.0.1:{port}" for name, port in zip(MODES, ports, strict=True)}
        finally:
            await process.stop()


# As gateways do it: encrypted, HTTP/2 by ALPN, and the certificate is not looked at.
_TLS = {
    "name": "envoy.transport_sockets.tls",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {"alpn_protocols": ["h2"], "validation_context": {}},
    },
}


def _listener(template: dict[str, Any], name: str, port: int) -> dict[str, Any]:
    listener = copy.deepcopy(template)
    listener["name"] = name
    listener["address"]["socket_address"]["port_value"] = port
    if name == "buffered-partial":
        listener["per_connection_buffer_limit_bytes"] = 32_768
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["stat_prefix"] = name
    ext_proc = manager["http_filters"][0]["typed_config"]
    ext_proc["processing_mode"] = {"request_header_mode": "SEND"} | MODES[name]
    if name == "streamed-unasked":
        ext_proc["send_body_without_waiting_for_header_response"] = True
    return listener


async def _ready(admin: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            stats = (await client.get(f"http://{admin}/clusters")).text
        except httpx.HTTPError:
            return False
    return stats.count("::hostname::") >= 3  # two workers by discovery, and the picker


async def tell(url: str, content: bytes | None = None, path: str = "/v1/chat/completions", **more: Any) -> Told:
    """Sends a request and returns what the upstream says of it."""
    async with httpx.AsyncClient(timeout=20) as client:
        method = more.pop("method", "GET" if content is None else "POST")
        response = await client.request(method, url + path, content=content, **more)
    assert response.status_code == 200, f"{response.status_code} {response.text}"
    return Told(**response.json())
