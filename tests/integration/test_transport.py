"""Our own transport on a socket: what clients of grpcio ask of it, and what hostile ones do to it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import uvloop

from picker.extproc.budget import ByteBudget
from picker.transport.calls import Call, Handler
from picker.transport.errors import Reason, Status
from picker.transport.frames import ACK, END_HEADERS, END_STREAM, PREFACE, FrameType, Setting, frame, settings
from picker.transport.limits import Limits
from picker.transport.server import Http2Server
from tests.unit.http2_peer import HEADERS, block, parsed, prefixed

DEADLINE_S = 20.0
H2LOAD = shutil.which("h2load")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]
ECHO, SLOW, BROKEN, SERVICE = "/test/Echo", "/test/Slow", "/test/Broken", "test.Service"


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[LoopFactory], None]:
    """The test, once on asyncio's own event loop and once on uvloop, whose transports are not the same."""

    def run(loop: LoopFactory) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test())

    run.__name__ = test.__name__
    mark = pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    return mark(run)


class Echo:
    """Says what it is told; ends when the client has."""

    def __init__(self, call: Call):
        self._call = call

    def message(self, data: bytes) -> None:
        self._call.send(data)

    def half_closed(self) -> None:
        self._call.finish()

    def no_room(self) -> None:
        self._call.finish(Status.RESOURCE_EXHAUSTED)

    def ended(self) -> None:
        pass


class Broken(Echo):
    def message(self, data: bytes) -> None:
        raise RuntimeError("SECRET-123")


@dataclass
class Serving:
    """A server, and what its peers did."""

    server: Http2Server
    port: int
    budget: ByteBudget
    misdeeds: Counter[Reason] = field(default_factory=Counter)
    slow: list[str] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def channel(self, **options: Any) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=list(options.items()))

    async def raw(self, greeting: bytes = PREFACE + frame(FrameType.SETTINGS, 0, 0)) -> Raw:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 16)
        self.writers.append(writer)
        writer.write(greeting)
        return Raw(reader, writer)

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.01)


@dataclass
class Raw:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def rest(self) -> list[tuple[int, int, int, bytes]]:
        """All that comes until the server hangs up."""
        data = b""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionResetError):
                while more := await self.reader.read(65536):
                    data += more
        return list(parsed(data))


@contextlib.asynccontextmanager
async def serving(**limits: Any) -> AsyncIterator[Serving]:
    budget = ByteBudget(64 << 20)
    misdeeds: Counter[Reason] = Counter()
    server = Http2Server(Limits(**limits), budget, lambda reason: misdeeds.update([reason]))
    here = Serving(server, 0, budget, misdeeds)

    class Slow(Echo):
        def half_closed(self) -> None:
            here.slow.append("half-closed")

        def ended(self) -> None:
            here.slow.append("ended")

    def slow(call: Call) -> Handler:
        return Slow(call)

    server.add_method(ECHO, Echo)
    server.add_method(SLOW, slow)
    server.add_method(BROKEN, Broken)
    server.add_generic_rpc_handlers([service()])
    here.port = await server.start("127.0.0.1", 0)
    try:
        yield here
    finally:
        for writer in here.writers:
            writer.transport.abort()
        await server.stop(0)
    assert server.connections == 0
    assert budget.taken == 0


def service() -> grpc.GenericRpcHandler[Any, Any]:
    """One method of each kind, as they are written for grpc.aio."""

    async def unary(request: bytes, context: Any) -> bytes:
        if request == b"refuse":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        if request == b"break":
            raise ValueError("SECRET-123")
        return request.upper()

    async def spread(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for byte in request:
            yield bytes([byte])

    async def gather(requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def both(requests: AsyncIterator[bytes], context: Any) -> None:
        async for request in requests:
            await context.write(request[::-1])

    def unreadable(data: bytes) -> bytes:
        raise ValueError(data)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "Unary": grpc.unary_unary_rpc_method_handler(unary, None, None),
            "Spread": grpc.unary_stream_rpc_method_handler(spread, None, None),
            "Gather": grpc.stream_unary_rpc_method_handler(gather, None, None),
            "Both": grpc.stream_stream_rpc_method_handler(both, None, None),
            "Unreadable": grpc.unary_unary_rpc_method_handler(unary, unreadable, None),
        },
    )


async def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


@on_both_loops
async def test_services_of_every_kind_that_were_written_for_grpcio_run_here() -> None:
    async with serving() as here, here.channel() as channel:
        assert await channel.unary_unary(f"/{SERVICE}/Unary")(b"abc") == b"ABC"
        assert [b async for b in channel.unary_stream(f"/{SERVICE}/Spread")(b"abc")] == [b"a", b"b", b"c"]
        assert await channel.stream_unary(f"/{SERVICE}/Gather")(iter([b"a", b"", b"c"])) == b"ac"
        assert [b async for b in channel.stream_stream(f"/{SERVICE}/Both")(iter([b"ab", b"cd"]))] == [b"ba", b"dc"]


@on_both_loops
async def test_a_servicer_may_refuse_and_may_break_and_gives_nothing_away() -> None:
    async with serving() as here, here.channel() as channel:
        unary = channel.unary_unary(f"/{SERVICE}/Unary")
        assert await code_of(unary(b"refuse")) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        code, details = await code_of(unary(b"break"))
        assert code is grpc.StatusCode.UNKNOWN
        assert "SECRET" not in details
        code, _ = await code_of(channel.unary_unary(f"/{SERVICE}/Unreadable")(b"x"))
        assert code is grpc.StatusCode.INTERNAL
        code, _ = await code_of(channel.unary_unary(BROKEN)(b"x"))
        assert code is grpc.StatusCode.INTERNAL
        assert await unary(b"abc") == b"ABC"


@on_both_loops
async def test_a_method_that_nobody_serves_is_unimplemented() -> None:
    async with serving() as here, here.channel() as channel:
        for path in ("/test/Nope", f"/{SERVICE}/Nope", "/"):
            code, _ = await code_of(channel.unary_unary(path)(b"x"))
            assert code is grpc.StatusCode.UNIMPLEMENTED


@on_both_loops
async def test_compressed_messages_are_refused_and_say_what_is_taken() -> None:
    async with serving() as here, here.channel() as channel:
        call = channel.unary_unary(ECHO)(b"x" * 10_000, compression=grpc.Compression.Gzip)
        code, details = await code_of(call)
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert "compressed" in details
        assert here.misdeeds == {Reason.COMPRESSED: 1}


@on_both_loops
async def test_a_deadline_is_kept_by_the_server_too() -> None:
    async with serving() as here:
        client = await here.raw()
        timed = block([*HEADERS[:2], (":path", SLOW), *HEADERS[3:], ("grpc-timeout", "50m")])
        client.writer.write(frame(FrameType.HEADERS, END_HEADERS, 1, timed))
        await here.until(lambda: here.slow == ["ended"])
        client.writer.write_eof()
        trailers = [payload for kind, flags, _, payload in await client.rest() if kind == 1 and flags & END_STREAM]
        assert f"grpc-status\x01{int(Status.DEADLINE_EXCEEDED)}".encode() in trailers[0]


@on_both_loops
async def test_megabytes_go_both_ways_on_many_streams() -> None:
    async with serving() as here, here.channel(**{"grpc.max_receive_message_length": -1}) as channel:
        echo = channel.unary_unary(ECHO)
        bodies = [bytes([number]) * (number * 100_000) for number in range(1, 21)]
        assert await asyncio.gather(*(echo(body) for body in bodies)) == bodies
        assert here.misdeeds == {}


@on_both_loops
async def test_a_servicer_that_reads_slowly_holds_up_its_own_stream_only() -> None:
    gate = asyncio.Event()

    async def slowly(requests: AsyncIterator[bytes], context: Any) -> bytes:
        await gate.wait()
        return str(sum([len(request) async for request in requests])).encode()

    method = grpc.stream_unary_rpc_method_handler(slowly, None, None)
    async with serving(stream_window_bytes=65_535) as here, here.channel() as channel:
        here.server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("slow", {"Sum": method})])
        call = channel.stream_unary("/slow/Sum")()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(1000):
                await call.write(b"x" * 10_000)
                sent += 1

        sending = asyncio.ensure_future(send())
        await here.until(lambda: sent > 10)
        for _ in range(20):
            assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"
            await asyncio.sleep(0.02)
        assert sent < 500, "the client was not held up"
        gate.set()
        await sending
        await call.done_writing()
        assert await call == b"10000000"


@on_both_loops
async def test_what_is_no_http2_is_hung_up_on() -> None:
    async with serving() as here:
        client = await here.raw(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        *_, (kind, _, _, payload) = await client.rest()
        assert (kind, payload[8:]) == (FrameType.GOAWAY, b"not-http2")
        assert here.misdeeds == {Reason.NOT_HTTP2: 1}


@on_both_loops
async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(handshake_s=0.2) as here:
        for greeting in (b"", PREFACE[:10], PREFACE):
            client = await here.raw(greeting)
            await client.rest()
        assert here.misdeeds == {Reason.HANDSHAKE_LATE: 3}


@on_both_loops
async def test_one_connection_too_many_is_closed_and_the_others_go_on() -> None:
    async with serving(max_connections=2) as here:
        clients = [await here.raw() for _ in range(2)]
        await here.until(lambda: here.server.connections == 2)
        assert await (await here.raw()).rest() == []
        assert here.misdeeds == {Reason.TOO_MANY_CONNECTIONS: 1}
        clients[0].writer.close()
        await here.until(lambda: here.server.connections == 1)
        async with here.channel() as channel:
            assert await channel.unary_unary(ECHO)(b"x") == b"x"


@on_both_loops
async def test_a_rapid_reset_ends_its_connection_and_no_other() -> None:
    async with serving(resets_per_s=20) as here, here.channel() as channel:
        echo = channel.unary_unary(ECHO)
        assert await echo(b"x") == b"x"
        client = await here.raw()
        slow = block([*HEADERS[:2], (":path", SLOW), *HEADERS[3:]])
        for stream_id in range(1, 2001, 2):
            client.writer.write(frame(FrameType.HEADERS, END_HEADERS, stream_id, slow))
            client.writer.write(frame(FrameType.RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
        *_, (kind, _, _, payload) = await client.rest()
        assert (kind, payload[8:]) == (FrameType.GOAWAY, b"rapid-reset")
        assert here.misdeeds == {Reason.RAPID_RESET: 1}
        assert set(here.slow) == {"ended"}
        assert await echo(b"x") == b"x"


@on_both_loops
async def test_a_peer_that_does_not_read_is_bounded_and_then_let_go() -> None:
    """All windows wide open and nothing taken from the socket: what cannot be written stays within the budget."""
    async with serving(stall_s=0.5) as here, here.channel() as channel:
        wide = settings({Setting.INITIAL_WINDOW_SIZE: 2**31 - 1}) + frame(FrameType.SETTINGS, ACK, 0)
        client = await here.raw(PREFACE + wide)
        client.writer.write(frame(FrameType.WINDOW_UPDATE, 0, 0, (2**31 - 1 - 65_535).to_bytes(4, "big")))
        echo = block([*HEADERS[:2], (":path", ECHO), *HEADERS[3:]])
        client.writer.write(frame(FrameType.HEADERS, END_HEADERS, 1, echo))
        pieces = frame(FrameType.DATA, 0, 1, prefixed(b"x" * 16_000)) * 4000
        client.writer.write(pieces)
        await here.until(lambda: here.misdeeds)
        assert here.misdeeds == {Reason.STALLED: 1}
        await here.until(lambda: here.server.connections <= 1)
        assert here.budget.taken == 0
        assert await channel.unary_unary(ECHO)(b"others go on") == b"others go on"
        client.writer.transport.abort()


@on_both_loops
async def test_a_peer_that_opens_no_window_is_let_go_stream_by_stream() -> None:
    async with serving(stall_s=0.5) as here:
        client = await here.raw(PREFACE + settings({Setting.INITIAL_WINDOW_SIZE: 0}))
        echo = block([*HEADERS[:2], (":path", ECHO), *HEADERS[3:]])
        for stream_id in (1, 3):
            client.writer.write(frame(FrameType.HEADERS, END_HEADERS, stream_id, echo))
            client.writer.write(frame(FrameType.DATA, END_STREAM, stream_id, prefixed(b"x" * 1000)))
        await here.until(lambda: here.misdeeds == {Reason.STALLED: 2})
        assert here.server.connections == 1
        assert here.budget.taken == 0
        client.writer.close()


@on_both_loops
async def test_a_drain_lets_open_calls_end_and_sends_new_ones_elsewhere() -> None:
    async with serving() as here, here.channel() as channel:
        call = channel.stream_stream(ECHO)()
        await call.write(b"before")
        assert await call.read() == b"before"
        stopping = asyncio.ensure_future(here.server.stop(DEADLINE_S))
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    (await here.raw()).writer.close()
        await call.write(b"after")
        assert await call.read() == b"after"
        assert not stopping.done()
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await stopping


@on_both_loops
async def test_a_drain_ends_what_outlasts_its_grace() -> None:
    async with serving() as here, here.channel() as channel:
        call = channel.stream_stream(SLOW)()
        await call.write(b"x")
        await call.read()
        await here.server.stop(0.1)
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
        assert here.slow == ["ended"]


@on_both_loops
async def test_a_crowd_of_streams_on_one_connection_is_answered_and_forgotten() -> None:
    async with serving() as here, here.channel() as channel:
        calls = [channel.stream_stream(ECHO)() for _ in range(1500)]
        await asyncio.gather(*(call.write(b"x") for call in calls))
        assert set(await asyncio.gather(*(call.read() for call in calls))) == {b"x"}
        for call in calls:
            call.cancel()
        [connection] = here.server._host.connections
        await here.until(lambda: not connection.connection.streams)
        assert here.misdeeds == {}


@on_both_loops
async def test_it_listens_on_both_families_where_the_host_is_the_unspecified_ipv6_address() -> None:
    server = Http2Server(Limits(), ByteBudget(0), lambda reason: None)
    server.add_method(ECHO, Echo)
    port = await server.start("::", 0)
    try:
        for host in ("127.0.0.1", "[::1]"):
            async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
                assert await channel.unary_unary(ECHO)(b"x") == b"x"
        with pytest.raises(OSError, match="in use"):
            await Http2Server(Limits(), ByteBudget(0), lambda reason: None).start("127.0.0.1", port)
    finally:
        await server.stop(0)


@pytest.mark.skipif(H2LOAD is None, reason="nghttp2's tools are not installed")
@on_both_loops
async def test_nghttp2_finds_nothing_wrong() -> None:
    headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    with tempfile.NamedTemporaryFile() as file:
        file.write(prefixed(b"x" * 50_000))
        file.flush()
        options = ("-n", "2000", "-c", "4", "-m", "50", "-d", file.name)
        await _load(options, headers)


async def _load(options: tuple[str, ...], headers: tuple[str, ...]) -> None:
    async with serving() as here:
        url = f"http://127.0.0.1:{here.port}{ECHO}"
        assert H2LOAD is not None
        process = await asyncio.create_subprocess_exec(
            H2LOAD, *options, *headers, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        told, _ = await process.communicate()
        assert b"2000 succeeded, 0 failed, 0 errored, 0 timeout" in told
        assert here.misdeeds == {}
