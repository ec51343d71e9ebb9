"""The gRPC service, against a client that behaves and misbehaves as proxies and networks do."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from picker.extproc.conversation import Settings
from picker.extproc.events import NotPicked
from picker.extproc.service import METHOD
from tests.integration.ext_proc import (
    MODES,
    TRANSPORTS,
    ScriptedPicker,
    body,
    headers,
    open_stream,
    response_headers,
    served,
)

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


async def test_a_request_is_picked_and_released_at_half_close(transport: str) -> None:
    async with served(transport) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers())
        await stream.write(body(b"{}"))
        pick = await stream.read()
        assert (
            pick.request_headers.response.header_mutation.set_headers[0].header.raw_value
            == b"10.0.0.1:8000,10.0.0.2:8000"
        )
        assert (await stream.read()).request_body.response.body_mutation.streamed_response.body == b"{}"
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() == grpc.StatusCode.OK


async def test_messages_and_streams_are_counted_by_kind(transport: str) -> None:
    async with served(transport) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers())
        await stream.write(body(b"{}"))
        assert await stream.read() and await stream.read()
        await stream.write(response_headers())
        assert await stream.read()
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        kinds = ("request_headers", "request_body", "response_headers")
        assert server.service.messages() == {(way, kind): 1 for way in ("received", "sent") for kind in kinds}
        assert server.service.ended() == {("full_duplex",): 1}


async def test_the_message_that_asks_for_more_time_is_counted_too(transport: str) -> None:
    picker, settings = ScriptedPicker(delay_s=0.05), Settings(longest_pick_s=30.0)
    async with served(transport, picker, settings) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers(MODES.BUFFERED, end=True))
        assert (await stream.read()).HasField("override_message_timeout")
        assert (await stream.read()).HasField("request_headers")
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert server.service.messages() == {
            ("received", "request_headers"): 1,
            ("sent", "override_message_timeout"): 1,
            ("sent", "request_headers"): 1,
        }


async def test_a_reset_releases_wherever_it_comes(transport: str) -> None:
    for messages in ([], [headers()], [headers(), body(b"{", False)], [headers(), body(b"{}")]):
        async with served(transport) as server, server.client() as channel:
            stream = open_stream(channel)
            for message in messages:
                await stream.write(message)
            await asyncio.sleep(0.05)
            stream.cancel()


async def test_a_lost_connection_releases(transport: str) -> None:
    async with served(transport) as server:
        channel = server.client()
        stream = open_stream(channel)
        await stream.write(headers())
        await stream.write(body(b"{}"))
        await stream.read()
        await channel.close()


async def test_a_client_that_leaves_while_its_pick_is_made_is_forgotten(transport: str) -> None:
    async with served(transport, ScriptedPicker(delay_s=0.2)) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers(end=True))
        while not server.picker.picks:
            await asyncio.sleep(0.01)
        stream.cancel()


async def test_a_body_that_does_not_come_is_refused_in_every_mode_that_has_one(transport: str) -> None:
    for mode in (MODES.FULL_DUPLEX_STREAMED, MODES.BUFFERED, MODES.BUFFERED_PARTIAL):
        async with served(transport, settings=Settings(body_timeout_s=0.1)) as server, server.client() as channel:
            stream = open_stream(channel)
            await stream.write(headers(mode))
            if mode == MODES.FULL_DUPLEX_STREAMED:
                await stream.write(body(b"{", end=False))
            replies = [reply async for reply in stream]
            assert replies[-1].immediate_response.status.code == 408
            assert await stream.code() == grpc.StatusCode.OK


async def test_an_exchange_that_does_not_end_is_given_up(transport: str) -> None:
    async with served(transport, settings=Settings(exchange_timeout_s=0.1)) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers(end=True))
        await stream.read()
        assert await stream.read() is grpc.aio.EOF
        assert server.picker.released == [1]


async def test_a_refusal_ends_the_stream(transport: str) -> None:
    picker = ScriptedPicker(answer=NotPicked(503, "no-workers", "None."))
    async with served(transport, picker) as server, server.client() as channel:
        stream = open_stream(channel)
        await stream.write(headers(end=True))
        refusal = (await stream.read()).immediate_response
        assert refusal.status.code == 503
        assert refusal.details == "picker:no-workers"
        assert await stream.read() is grpc.aio.EOF


async def test_bytes_that_are_no_message_end_their_stream_only(transport: str) -> None:
    async with served(transport) as server, server.client() as channel:
        raw = channel.stream_stream(METHOD, None, None)
        stream = raw()
        await stream.write(b"\xff\xff garbage")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        good = open_stream(channel)
        await good.write(headers(end=True))
        assert (await good.read()).HasField("request_headers")
        await good.done_writing()


async def test_a_first_message_without_a_mode_is_taken_as_buffered(transport: str) -> None:
    async with served(transport) as server, server.client() as channel:
        stream = open_stream(channel)
        message = headers()
        message.ClearField("protocol_config")
        await stream.write(message)
        assert (await stream.read()) == pb.ProcessingResponse(request_headers=pb.HeadersResponse())
        await stream.write(body(b"{}"))
        assert (await stream.read()).request_body.response.header_mutation.set_headers
        await stream.write(response_headers())
        assert (await stream.read()).HasField("response_headers")
        await stream.done_writing()


async def test_many_streams_at_once_are_all_answered_and_all_forgotten(transport: str) -> None:
    async def one(channel: grpc.aio.Channel) -> None:
        stream = open_stream(channel)
        await stream.write(headers())
        await stream.write(body(b"{}"))
        assert (await stream.read()).HasField("request_headers")
        await asyncio.sleep(0.05)
        stream.cancel()

    async with served(transport) as server, server.client() as channel:
        await asyncio.gather(*(one(channel) for _ in range(300)))
        assert server.picker.placed == 300
