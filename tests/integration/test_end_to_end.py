"""Requests through a real Envoy, a real picker, a real Valkey and simulated workers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import httpx
import pytest
import pytest_asyncio
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import Conversation, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
FAST = ("--speed", "20")


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[("fail-open", "http2"), ("full-duplex", "http2"), ("fail-open", "grpcio")],
    ids=" on ".join,
)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    envoy, transport = request.param
    async with Stack(Plan(workers=3, envoy=envoy, worker=FAST, picker={"transport": transport})) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        yield client


async def test_each_conversation_stays_with_the_worker_that_holds_its_prefix(client: httpx.AsyncClient) -> None:
    conversations = [Conversation(f"conversation {i}") for i in range(6)]
    for _ in range(4):
        for conversation in conversations:
            assert (await conversation.turn(client)).status_code == 200
    for conversation in conversations:
        assert len(set(conversation.workers)) == 1, conversation.workers
    assert len({conversation.workers[0] for conversation in conversations}) > 1


async def test_the_predicted_hit_is_what_the_worker_finds_cached(stack: Stack, client: httpx.AsyncClient) -> None:
    conversation = Conversation("predicted")
    await conversation.turn(client)
    name = f'picker_predicted_hit_tokens_total{{model="{MODEL}"}}'
    before = (await stack.metrics()).get(name, 0.0)
    usage = (await conversation.turn(client)).json()["usage"]
    predicted = (await stack.metrics())[name] - before
    assert predicted > 0
    # Index blocks are 64 tokens, the engine's blocks 16; a prediction is short by the remainder at the most.
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] - predicted < 64


async def test_what_engines_count_is_held_against_what_was_predicted(stack: Stack, client: httpx.AsyncClient) -> None:
    names = [
        f'picker_{name}{{model="{MODEL}"}}'
        for name in ("predicted_hit_share", "engine_hit_share", "expected_output_tokens", "prediction_wrong")
    ]
    conversation = Conversation("counted")

    async def is_known() -> bool:
        await conversation.turn(client)
        return set(names) <= (await stack.metrics()).keys()

    await until(is_known)
    predicted, counted, length, is_wrong = [(await stack.metrics())[name] for name in names]
    assert 0 < predicted <= 1 and 0 < counted <= 1
    assert 1 <= length < 256, "the answers of this test are short"
    assert is_wrong == 0


async def test_a_streamed_answer_arrives_whole(client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "stream": True}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.text.rstrip().endswith("data: [DONE]")


async def test_a_completion_with_token_ids_is_routed_by_its_tokens(stack: Stack, client: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": list(range(10, 400)), "max_tokens": 2}
    first = await client.post("/v1/completions", json=body)
    second = await client.post("/v1/completions", json=body)
    assert first.status_code == second.status_code == 200
    assert first.headers["x-worker"] == second.headers["x-worker"]
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= 320


async def test_a_body_of_three_megabytes_reaches_the_worker_whole(client: httpx.AsyncClient) -> None:
    text = "x" * 3_000_000
    response = await client.post("/tokenize", json={"model": MODEL, "prompt": text})
    assert response.status_code == 200
    tokens = response.json()["tokens"]
    back = await client.post("/detokenize", json={"model": MODEL, "tokens": tokens})
    assert back.json()["prompt"] == text


async def test_requests_without_a_body_are_routed(client: httpx.AsyncClient) -> None:
    models = await client.get("/v1/models")
    assert models.status_code == 200
    assert models.json()["data"][0]["id"] == MODEL
    assert (await client.get("/health")).status_code == 200
    assert (await client.post("/reset_prefix_cache")).status_code == 200


async def test_a_client_cannot_choose_the_upstream(client: httpx.AsyncClient) -> None:
    forged = {"x-gateway-destination-endpoint": "127.0.0.1:9", "x-gateway-destination-endpoint-subset": "127.0.0.1:9"}
    response = await client.get("/v1/models", headers=forged)
    assert response.status_code == 200
    response = await Conversation("forger").turn(client)
    assert response.status_code == 200


async def test_an_unknown_model_is_refused_in_the_clients_dialect(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={"model": "nope", "messages": []})
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-picker-reason"] == "unknown-model"
    error = response.json()["error"]
    assert (error["code"], error["reason"]) == (404, "unknown-model")


async def test_a_body_that_is_no_json_is_refused_without_an_echo(client: httpx.AsyncClient) -> None:
    marker = "SECRET-123"
    response = await client.post(
        "/v1/chat/completions", content=f'{{"model": "{marker}', headers={"content-type": "application/json"}
    )
    assert response.status_code == 400
    assert marker not in response.text


async def test_nobody_learns_the_worker_from_the_picker_unless_asked_for(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models")
    assert "x-picker-endpoint" not in response.headers
    assert "x-gateway-destination-endpoint" not in response.headers


async def test_the_books_are_empty_when_all_is_over(stack: Stack, client: httpx.AsyncClient) -> None:
    await Conversation("the last").turn(client)
    await until(lambda: stack.metric_is("picker_inflight_requests", 0))
    await until(lambda: stack.metric_is("picker_inflight_prefill_seconds", 0))
    await until(lambda: stack.metric_is("picker_streams", 0))
    await until(lambda: stack.metric_is("picker_held_body_bytes", 0))


async def test_envoy_reports_every_outcome(stack: Stack, client: httpx.AsyncClient) -> None:
    before = (await stack.metrics()).get('picker_responses_total{class="2xx"}', 0.0)
    await client.get("/v1/models")
    await until(lambda: stack.metric_is('picker_responses_total{class="2xx"}', before + 1))
    assert (await stack.metrics())["picker_picks_not_honoured_total"] == 0


async def test_pr_36_health_is_told_under_every_name_that_gateways_probe(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.picker_address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING, name
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nope"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


async def test_a_generic_client_can_list_and_describe_the_services(stack: Stack) -> None:
    async with grpc.aio.insecure_channel(stack.picker_address) as channel:
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        [listing] = [reply async for reply in reflect(iter([_Request(list_services="")]))]
        names = {service.name for service in listing.list_services_response.service}
        assert names >= {
            "envoy.service.ext_proc.v3.ExternalProcessor",
            "envoy.service.endpoint.v3.EndpointDiscoveryService",
            "envoy.service.accesslog.v3.AccessLogService",
            "grpc.health.v1.Health",
        }
        for name in names:
            [described] = [reply async for reply in reflect(iter([_Request(file_containing_symbol=name)]))]
            files = described.file_descriptor_response.file_descriptor_proto
            services = [s.name for data in files for s in FileDescriptorProto.FromString(data).service]
            assert name.rpartition(".")[2] in services


_Request = reflection_pb2.ServerReflectionRequest
