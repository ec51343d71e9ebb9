"""A proxy that is gone without a word, as when its machine has lost power."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import grpc
import pytest

from picker.config import Config, Limits
from picker.extproc.budget import ByteBudget
from picker.ports import grpc_options, http2_limits
from picker.transport.calls import Call, Handler
from picker.transport.server import Http2Server
from tests.integration.ext_proc import TRANSPORTS

DEADLINE_S = 30.0


class Blackhole:
    """Carries bytes both ways until it is `silent`; then it takes none, and closes nothing."""

    def __init__(self, port: int):
        self._port = port
        self._tasks = asyncio.TaskGroup()
        self.silent = False

    async def __aenter__(self) -> Blackhole:
        await self._tasks.__aenter__()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._server.close()
        self._pumps.cancel()
        await self._tasks.__aexit__(*error)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pumps = self._tasks.create_task(self._carry(reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._pump(reader, inner_writer), self._pump(inner_reader, writer))
        finally:
            writer.close()
            inner_writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if not self.silent:
                    writer.write(data)


class Waiting:
    """Notes which streams are open, on either transport."""

    def __init__(self) -> None:
        self.open: set[object] = set()

    async def on_grpcio(self, _: object, context: Any) -> None:
        self.open.add(context)
        try:
            while isinstance(await context.read(), bytes):
                pass
        finally:
            self.open.discard(context)

    def on_http2(self, call: Call) -> Handler:
        self.open.add(call)
        return _Listener(self.open, call)


class _Listener:
    def __init__(self, open_: set[object], call: Call):
        self._open = open_
        self._call = call

    def message(self, data: bytes) -> None:
        pass

    def half_closed(self) -> None:
        self._call.finish()

    def no_room(self) -> None:
        pass

    def ended(self) -> None:
        self._open.discard(self._call)


@contextlib.asynccontextmanager
async def serving(transport: Literal["grpcio", "http2"], waiting: Waiting) -> AsyncIterator[int]:
    """The port of a server that asks for signs of life twice a second."""
    config = Config(transport=transport, limits=Limits(keepalive_s=0.5))
    if transport == "http2":
        own = Http2Server(http2_limits(config), ByteBudget(0), lambda reason: None)
        own.add_method("/test/Wait", waiting.on_http2)
        yield await own.start("127.0.0.1", 0)
        await own.stop(0)
    else:
        server = grpc.aio.server(options=grpc_options(config.limits))
        method = grpc.stream_stream_rpc_method_handler(waiting.on_grpcio, None, None)
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {"Wait": method})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        yield port
        await server.stop(0)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("is_silent", [True, False])
async def test_requests_of_a_proxy_that_fell_silent_end_and_those_of_an_idle_one_do_not(
    transport: Literal["grpcio", "http2"], is_silent: bool
) -> None:
    waiting = Waiting()
    async with (
        serving(transport, waiting) as port,
        Blackhole(port) as hole,
        grpc.aio.insecure_channel(f"127.0.0.1:{hole.port}") as channel,
    ):
        call: Any = channel.stream_stream("/test/Wait", None, None)(None)
        await call.write(b"")
        async with asyncio.timeout(DEADLINE_S):
            while not waiting.open:
                await asyncio.sleep(0.01)
        hole.silent = is_silent
        # Long enough for several pings that are answered, or one that is not.
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(300):
                await asyncio.sleep(0.01)
            while is_silent and waiting.open:
                await asyncio.sleep(0.01)
        assert bool(waiting.open) is not is_silent
        call.cancel()
