"""Field cases and the reference picker's known defects (D..), told to the gRPC port by a scripted proxy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2

from picker import envoy_config
from picker.config import Config
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.service import ExtProcService
from picker.fleet.view import View
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.redisview.records import WorkerRecord, WorkerState
from picker.telemetry.metrics import Metrics
from tests.integration.ext_proc import MODES, body, headers, open_stream, response_headers

CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}'
Fleet = Sequence[str]


class Proxy:
    """Says what a proxy would, and reads the answer."""

    def __init__(self, channel: grpc.aio.Channel, view: View, metrics: Metrics):
        self.channel = channel
        self.view = view
        self.metrics = metrics

    async def ask(self, *messages: pb.ProcessingRequest, more: int = 0) -> list[pb.ProcessingResponse]:
        """The answers: one, and so many more."""
        stream = open_stream(self.channel)
        for message in messages:
            await stream.write(message)
        answers = [await stream.read() for _ in range(1 + more)]
        await stream.done_writing()
        return answers

    async def picked(self, *messages: pb.ProcessingRequest) -> list[str]:
        """The endpoints in the answer; header and metadata must say the same."""
        [answer] = await self.ask(*messages)
        [option] = answer.request_headers.response.header_mutation.set_headers
        fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
        assert option.header.key == "x-gateway-destination-endpoint"
        assert option.header.raw_value.decode() == fields["x-gateway-destination-endpoint"].string_value
        return option.header.raw_value.decode().split(",")

    async def refused(self, *messages: pb.ProcessingRequest) -> pb.ImmediateResponse:
        [answer] = await self.ask(*messages)
        assert answer.HasField("immediate_response"), answer
        return answer.immediate_response


@contextlib.asynccontextmanager
async def proxy(endpoints: Fleet = ("10.0.0.5:8000", "10.0.0.6:8000"), **config: Any) -> AsyncIterator[Proxy]:
    """A picker that knows these workers, behind a real gRPC port."""
    view, metrics = View(), Metrics()
    for number, endpoint in enumerate(endpoints):
        record = WorkerRecord(
            worker=endpoint, epoch=number + 1, endpoint=endpoint, state=WorkerState.READY, models=("m",)
        )
        view.admit(record, 0.0)
    picker = Picker(Config(**config), view, PromptReader({}), metrics, lambda: False)
    server = grpc.aio.server()
    service = ExtProcService(picker, metrics, Settings(), ByteBudget(1 << 30))
    server.add_generic_rpc_handlers([service.handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Proxy(channel, view, metrics)
    finally:
        await server.stop(0)
        picker.close()
    assert view.inflight.requests.sum() == 0


def hinted(value: Any, **more: Any) -> pb.ProcessingRequest:
    """Headers of a GET with a subset hint in the metadata."""
    message = headers(end=True, method="GET", **more)
    hint = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
    hint.fields["x-gateway-destination-endpoint-subset"].CopyFrom(value)
    return message


def a_list(*endpoints: str) -> struct_pb2.Value:
    values = [struct_pb2.Value(string_value=endpoint) for endpoint in endpoints]
    return struct_pb2.Value(list_value=struct_pb2.ListValue(values=values))


def a_string(text: str) -> struct_pb2.Value:
    return struct_pb2.Value(string_value=text)


async def test_pr_01_a_last_piece_that_comes_twice_counts_once() -> None:
    data = json.dumps({"model": "m", "prompt": "x" * 1_200_000}).encode()
    pieces = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    async with proxy() as asked:
        stream = open_stream(asked.channel)
        await stream.write(headers())
        for piece in pieces[:-1]:
            await stream.write(body(piece, end=False))
        for _ in range(2):
            await stream.write(body(pieces[-1]))
        await stream.done_writing()
        answers = [answer async for answer in stream]
        returned = [
            a.request_body.response.body_mutation.streamed_response for a in answers if a.HasField("request_body")
        ]
        assert b"".join(piece.body for piece in returned) == data
        assert [piece.end_of_stream for piece in returned] == [False] * (len(returned) - 1) + [True]
        assert sum(a.HasField("request_headers") for a in answers) == 1
        [ignored] = [
            s for m in asked.metrics.registry.collect() for s in m.samples if s.name == "picker_ignored_messages_total"
        ]
        assert ignored.value == 1


async def test_pr_06_the_mode_is_taken_as_announced_and_meaningless_fields_are_ignored() -> None:
    async with proxy() as asked:
        full = headers()
        full.protocol_config.response_body_mode = MODES.FULL_DUPLEX_STREAMED
        full.protocol_config.send_body_without_waiting_for_header_response = False
        [answer] = await asked.ask(full, body(CHAT))
        assert answer.HasField("request_headers")
        older = headers()
        older.ClearField("protocol_config")
        for first in (older, headers(MODES.BUFFERED)):
            answers = await asked.ask(first, body(CHAT), more=1)
            assert answers[0] == pb.ProcessingResponse(request_headers=pb.HeadersResponse())
            assert answers[1].request_body.response.header_mutation.set_headers


async def test_pr_10_a_websocket_is_picked_at_once_and_booked_until_it_closes() -> None:
    async with proxy() as asked:
        stream = open_stream(asked.channel)
        await stream.write(headers(method="GET", connection="upgrade", upgrade="websocket"))
        assert (await stream.read()).HasField("request_headers")
        assert asked.view.inflight.requests.sum() == 1
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF


async def test_pr_15_every_header_is_filled_in_one_field_only() -> None:
    async with proxy() as asked:
        answers = await asked.ask(headers(end=True, method="GET"))
        answers += await asked.ask(headers(MODES.BUFFERED), body(CHAT), more=1)
        answers += await asked.ask(headers(), body(b'{"model": "nope", "prompt": "x"}'))
        answers += await asked.ask(headers(), body(b"["))
        mutations = [
            mutation
            for answer in answers
            for mutation in (
                answer.request_headers.response.header_mutation,
                answer.request_body.response.header_mutation,
                answer.immediate_response.headers,
            )
        ]
        options = [option for mutation in mutations for option in mutation.set_headers]
        assert len(options) >= 6
        assert all(option.header.raw_value and not option.header.value for option in options)


async def test_pr_21_a_later_attempt_goes_elsewhere() -> None:
    async with proxy() as asked:
        first = await asked.picked(headers(end=True, x_request_id="r1", x_envoy_attempt_count="1"))
        for _ in range(8):
            again = await asked.picked(headers(end=True, x_request_id="r1", x_envoy_attempt_count="2"))
            assert again[0] != first[0]
            first_again = await asked.picked(headers(end=True, x_request_id="r1", x_envoy_attempt_count="1"))
            first = first_again


async def test_pr_22_d4_a_hint_restricts_and_never_widens() -> None:
    known, unknown = "10.0.0.5:8000", "10.9.9.9:1"
    async with proxy() as asked:
        assert set(await asked.picked(headers(end=True, method="GET"))) == {known, "10.0.0.6:8000"}
        for hint in (
            a_list(known),
            a_string(known),
            a_string(f" {known} , {known},"),
            a_list(known, unknown, "", "  "),
        ):
            assert await asked.picked(hinted(hint)) == [known]
        nothing = struct_pb2.Value(number_value=7)
        for hint in (
            a_list(),
            a_string(""),
            a_list(unknown),
            a_list("10.0.0.5:8001"),
            nothing,
            struct_pb2.Value(bool_value=True),
        ):
            refusal = await asked.refused(hinted(hint))
            assert refusal.status.code == 503
            assert b"subset-has-no-worker" in refusal.body


async def test_pr_23_d10_ipv6_is_matched_in_every_spelling_and_written_in_brackets() -> None:
    async with proxy(["[fd00::5]:8000", "10.0.0.6:8000"]) as asked:
        for spelling in ("[fd00::5]:8000", "fd00::5", "fd00:0:0:0:0:0:0:5", "[FD00:0::5]:8000", "[fd00::5]"):
            assert await asked.picked(hinted(a_list(spelling))) == ["[fd00::5]:8000"]


async def test_d1_d17_nobody_to_serve_is_a_503_for_requests_with_and_without_a_body() -> None:
    async with proxy([]) as asked:
        for messages in ([headers(end=True, method="GET")], [headers(), body(CHAT)]):
            refusal = await asked.refused(*messages)
            assert refusal.status.code == 503
            names = {option.header.key: option.header.raw_value for option in refusal.headers.set_headers}
            assert names["x-llm-d-request-dropped-reason"] == b"rejected-no-endpoints"
            assert int(names["retry-after"]) > 0


async def test_d2_a_get_obeys_the_hint() -> None:
    async with proxy() as asked:
        assert await asked.picked(hinted(a_list("10.0.0.6:8000"))) == ["10.0.0.6:8000"]


async def test_d5_d6_d7_a_response_is_left_as_it_is() -> None:
    async with proxy() as asked:
        message = response_headers(500)
        for cookie in (b"a=1", b"b=2"):
            message.response_headers.headers.headers.add(key="set-cookie", raw_value=cookie)
        answers = await asked.ask(headers(end=True, method="GET"), message, more=1)
        assert answers[1] == pb.ProcessingResponse(response_headers=pb.HeadersResponse())


async def test_d9_a_rewrite_changes_the_bytes_of_the_name_and_no_others() -> None:
    odd = b'{"seed": 9007199254740993, "model" :\t"fast", "prompt": "<&> \\u00e9 \xc3\xa9", "prompt": "again"}'
    async with proxy(rewrites={"fast": "m"}) as asked:
        answers = await asked.ask(headers(), body(odd), more=1)
        assert answers[1].request_body.response.body_mutation.streamed_response.body == odd.replace(b'"fast"', b'"m"')


async def test_pr_38_a_grpc_client_is_refused_with_a_grpc_status() -> None:
    async with proxy([]) as asked:
        path = "/vllm.grpc.engine.VllmEngine/Generate"
        first = headers(content_type="application/grpc", te="trailers", **{":path": path})
        refusal = await asked.refused(first, body(b"\0\0\0\0\5", end=False), body(b"proto"))
        assert refusal.grpc_status.status == 14


async def test_pr_38_a_grpc_body_is_placed_without_being_read() -> None:
    async with proxy() as asked:
        first = headers(content_type="application/grpc", **{":path": "/vllm.grpc.engine.VllmEngine/Generate"})
        [answer] = await asked.ask(first, body(b"\0\0\0\0\5", end=False), body(b"proto"))
        assert answer.HasField("request_headers")


async def test_pr_39_no_route_depends_on_what_the_picker_sets() -> None:
    async with proxy() as asked:
        for answer in await asked.ask(headers(end=True)) + await asked.ask(headers(MODES.BUFFERED), body(CHAT), more=1):
            assert not answer.request_headers.response.clear_route_cache
            assert not answer.request_body.response.clear_route_cache


@pytest.mark.parametrize("name", envoy_config.NAMES)
def test_pr_34_pr_44_the_shipped_files_wait_as_long_as_engines_take(name: str) -> None:
    manager = envoy_config.load(name)["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
        "typed_config"
    ]
    routes = [route for host in manager["route_config"]["virtual_hosts"] for route in host["routes"]]
    assert {route["route"]["timeout"] for route in routes} == {"0s"}
    assert float(manager["stream_idle_timeout"].removesuffix("s")) >= 1800
    ext_proc = next(
        f["typed_config"] for f in manager["http_filters"] if "ExternalProcessor" in f["typed_config"]["@type"]
    )
    assert float(ext_proc["message_timeout"].removesuffix("s")) >= 5
