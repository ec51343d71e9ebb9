"""Traces in a real OTLP receiver: joined to the caller's, handed on to the worker, sampled, and free of secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2

from picker.config import Config
from picker.events.recorder import Recorder
from picker.extproc.access_log import Outcome as Logged
from picker.extproc.actions import Pick, SendBodyPick, SendHeadersPick
from picker.extproc.events import Picked
from picker.extproc.wire.building import build
from picker.observing import Observer
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.simulation.process import free_ports
from picker.telemetry.metrics import Metrics
from picker.telemetry.trace_settings import Traces
from picker.telemetry.tracing import Tracing, tracing
from tests.unit.fleets import endpoint, fleet

# Not there, or its files replaced by those of another package: see the extra `otel` in pyproject.toml.
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", exc_type=ImportError)
otlp = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
otlp_grpc = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc")

TRACE, ABOVE = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "sk-very-secret"


class Receiver(otlp_grpc.TraceServiceServicer):  # type: ignore[name-defined, misc]
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    async def Export(self, request: Any, context: Any) -> Any:
        self.batches.append(request)
        return otlp.ExportTraceServiceResponse()

    @property
    def spans(self) -> dict[str, Any]:
        return {span.name: span for batch in self.batches for span in _all(batch)}


class Rig:
    def __init__(self, address: str, **settings: Any):
        self.recorder = Recorder(Config().events, "p")
        self.tracing = tracing(Traces(endpoint=f"http://{address}", **settings), self.recorder)
        view = fleet(2)
        self.picker = Picker(Config(), view, PromptReader({}), Metrics(), lambda: False, Observer(self.recorder, view))

    async def pick(self, traceparent: str = "", model: str = "llama", **headers: str) -> Any:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": SECRET}]}).encode()
        given = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "r1", "traceparent": traceparent}
        return await self.picker.pick(Pick({**given, **headers}, body, began_at=time.monotonic()))

    async def sent(self) -> None:
        await self.tracing.send(float("inf"))
        await asyncio.to_thread(self.tracing._sender.force_flush)


@contextlib.asynccontextmanager
async def rig(**settings: Any) -> AsyncIterator[tuple[Rig, Receiver]]:
    receiver, address = Receiver(), f"127.0.0.1:{free_ports(1)[0]}"
    server = grpc.aio.server()
    otlp_grpc.add_TraceServiceServicer_to_server(receiver, server)
    server.add_insecure_port(address)
    await server.start()
    rig = Rig(address, **settings)
    try:
        yield rig, receiver
    finally:
        rig.picker.close()
        await asyncio.to_thread(rig.tracing._sender.shutdown)
        await server.stop(0)


def told(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


async def test_a_request_is_told_in_spans_below_the_callers() -> None:
    async with rig() as (picks, receiver):
        answer = await picks.pick(f"00-{TRACE}-{ABOVE}-01")
        assert isinstance(answer, Picked)
        picks.picker.replied(answer.placement)
        picks.picker.first_byte(answer.placement, 200, answer.endpoints[0])
        picks.recorder.told(answer.placement.booking, 100, 64, 7)
        picks.picker.release(answer.placement)
        picks.recorder.logged(Logged(200, 2, answer.endpoints, endpoint(9), "r1", details="via_upstream"))
        await picks.sent()
        spans = receiver.spans
        stages = [f"picker.{name}" for name in ("receive", "read", "prompt", "decide", "reply")]
        assert {"picker.pick", *stages, "chat llama"} == set(spans)
        began = [spans[stage].start_time_unix_nano for stage in (*stages, "chat llama")]
        assert began == sorted(began)
        assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
        top, worker = spans["picker.pick"], spans["chat llama"]
        assert top.parent_span_id.hex() == ABOVE
        assert {span.parent_span_id for name, span in spans.items() if name != "picker.pick"} == {top.span_id}
        assert answer.traceparent == f"00-{TRACE}-{worker.span_id.hex()}-01"
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
        assert top.start_time_unix_nano <= spans["picker.decide"].start_time_unix_nano
        facts = told(top)
        assert (facts["gen_ai.request.model"], facts["picker.attempts"]) == ("llama", 2)
        assert facts["gen_ai.usage.output_tokens"] == 7
        assert told(worker)["server.address"] == endpoint(9)
        assert "picker.cost.work" in told(spans["picker.decide"])
        [resource] = receiver.batches[0].resource_spans
        assert told(resource.resource)["service.name"] == "picker"


async def test_what_is_not_sampled_above_is_not_traced() -> None:
    async with rig(sample=1.0) as (picks, receiver):
        answer = await picks.pick(f"00-{TRACE}-{ABOVE}-00")
        picks.picker.release(answer.placement)
        await picks.sent()
        assert answer.traceparent == "" and receiver.spans == {}


@pytest.mark.parametrize("sample", [0.0, 1.0])
async def test_requests_without_a_trace_begin_one_by_their_share(sample: float) -> None:
    async with rig(sample=sample) as (picks, receiver):
        for nonsense in ("", "00-zz-1-01", f"ff-{TRACE}-{ABOVE}-01", f"00-{'0' * 32}-{ABOVE}-01"):
            answer = await picks.pick(nonsense)
            picks.picker.release(answer.placement)
            assert bool(answer.traceparent) == bool(sample)
        await picks.sent()
        assert bool(receiver.spans) == bool(sample)


async def test_refusals_are_errors_and_nothing_that_a_client_wrote_is_told() -> None:
    async with rig() as (picks, receiver):
        headers = {"x-session-id": SECRET, "x-llm-d-inference-fairness-id": SECRET, "authorization": SECRET}
        await picks.pick(f"00-{TRACE}-{ABOVE}-01", model=SECRET, **headers)
        answer = await picks.pick(f"00-{TRACE}-{ABOVE}-01", **headers)
        picks.picker.release(answer.placement)
        await picks.sent()
        assert any(
            told(span).get("error.type") == "unknown-model" for batch in receiver.batches for span in _all(batch)
        )
        assert receiver.batches and SECRET not in str(receiver.batches)


def _all(batch: Any) -> list[Any]:
    return [span for each in batch.resource_spans for scope in each.scope_spans for span in scope.spans]


async def test_a_receiver_that_is_away_costs_requests_nothing() -> None:
    picks = Rig(f"127.0.0.1:{free_ports(1)[0]}", sample=1.0, queue=16)
    for _ in range(40):
        answer = await picks.pick()
        picks.picker.release(answer.placement)
    assert len(picks.tracing._ended) == 16
    picks.picker.close()


async def test_off_nothing_is_made_of_a_decision() -> None:
    view = fleet(1)
    recorder = Recorder(Config().events, "p")
    picker = Picker(Config(), view, PromptReader({}), Metrics(), lambda: False, Observer(recorder, view))
    answer = await picker.pick(Pick({":path": "/x", "traceparent": f"00-{TRACE}-{ABOVE}-01"}, b""))
    picker.close()
    assert isinstance(answer, Picked) and answer.traceparent == ""
    assert next(recorder.ring.newest()).span is None


@pytest.mark.parametrize("action", [SendHeadersPick, SendBodyPick])
@pytest.mark.parametrize("new_body", [None, b"{}"])
def test_the_workers_traceparent_goes_into_the_same_message(action: Any, new_body: bytes | None) -> None:
    more = {"new_body": new_body} if action is SendBodyPick else {}
    data = build(action(("10.0.0.1:8000",), traceparent="00-a-b-01", **more))
    message = external_processor_pb2.ProcessingResponse.FromString(data)
    [part] = [part for _, part in message.ListFields() if hasattr(part, "response")]
    headers = {each.header.key: each.header.raw_value for each in part.response.header_mutation.set_headers}
    assert headers["traceparent"] == b"00-a-b-01"
    assert headers["x-gateway-destination-endpoint"] == b"10.0.0.1:8000"
    assert message.HasField("dynamic_metadata")


def test_span_numbers_are_never_zero() -> None:
    class Zero(Random):
        def getrandbits(self, bits: int, /) -> int:
            return 0

    numbers = Tracing.__new__(Tracing)
    numbers._rng = Zero()
    assert numbers._number(64) == f"{1:016x}"
