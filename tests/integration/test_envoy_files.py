"""Every shipped Envoy configuration, run by a real Envoy: it works as it says, and the doctor has nothing to say."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import httpx
import pytest
import pytest_asyncio

from picker import envoy_config
from picker.doctor.examine import CannotExamine, examine_envoy, examine_file
from picker.doctor.finding import Finding
from picker.extproc.service import SERVICE
from picker.simulation.process import free_ports
from picker.simulation.stack import MODEL, Plan, Stack, envoy_binary
from tests.integration.traffic import Conversation, until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
FORGED = "x-gateway-destination-endpoint"


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=envoy_config.NAMES)
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[Stack]:
    async with Stack(Plan(workers=3, envoy=request.param, worker=("--speed", "20"))) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module")
async def client(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        yield client


class Bystander:
    """A server that must never be asked."""

    def __init__(self) -> None:
        self.connections = 0

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._count, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _count(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nstolen")
        await writer.drain()
        writer.close()


async def diagnosis(stack: Stack) -> list[Finding]:
    return await asyncio.to_thread(
        examine_envoy, f"http://{stack.admin_address}", f"http://{stack.metrics_address}", seconds=0.0
    )


async def test_a_chat_stays_with_its_worker_and_is_streamed_whole(client: httpx.AsyncClient) -> None:
    conversation = Conversation("a chat")
    for _ in range(3):
        assert (await conversation.turn(client)).status_code == 200
    assert len(set(conversation.workers)) == 1
    body = {"model": MODEL, "messages": conversation.messages, "max_tokens": 5, "stream": True}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["x-worker"] == conversation.workers[0]
    assert response.text.rstrip().endswith("data: [DONE]")


async def test_a_request_without_a_body_passes(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models")
    assert response.status_code == 200
    assert response.headers["x-worker"]


async def test_a_long_conversation_passes(client: httpx.AsyncClient) -> None:
    response = await client.post("/tokenize", json={"model": MODEL, "prompt": "x" * 3_000_000})
    assert response.status_code == 200


async def test_a_refusal_reaches_the_client(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/chat/completions", json={"model": "nope", "messages": []})
    assert (response.status_code, response.headers["x-picker-reason"]) == (404, "unknown-model")


async def test_a_forged_header_never_chooses_the_upstream(client: httpx.AsyncClient) -> None:
    async with (bystander := Bystander()) as address:
        for name in (FORGED, FORGED.title()):
            assert (await client.get("/v1/models", headers={name: address})).headers["x-worker"]
            assert (await client.post("/reset_prefix_cache", headers={name: address})).headers["x-worker"]
    assert bystander.connections == 0


async def test_the_books_are_empty_when_all_is_over(stack: Stack, client: httpx.AsyncClient) -> None:
    await Conversation("booked").turn(client)
    await until(lambda: stack.metric_is("picker_inflight_requests", 0))


# After the tests above, so that a counter which ordinary traffic raises would be seen.
async def test_the_doctor_finds_nothing(stack: Stack, client: httpx.AsyncClient) -> None:
    assert (await client.get("/v1/models")).status_code == 200
    assert await diagnosis(stack) == []


async def test_a_saved_dump_says_the_same(stack: Stack, tmp_path: Path) -> None:
    async with httpx.AsyncClient() as client:
        dump = (await client.get(f"http://{stack.admin_address}/config_dump")).json()
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(dump))
    assert examine_file(path) == []


# The last of the module's tests on each stack: it ends the picker.
async def test_without_a_picker_a_forged_header_chooses_nobody_either(stack: Stack, client: httpx.AsyncClient) -> None:
    stack.picker.kill()
    async with (bystander := Bystander()) as address:
        response = await client.get("/v1/models", headers={FORGED: address})
        chat = await client.post("/v1/chat/completions", headers={FORGED: address}, json={"model": MODEL})
    assert bystander.connections == 0
    opens = stack.plan.envoy == "fail-open"
    assert response.status_code == (200 if opens else 503)
    assert opens or chat.status_code == 503
    found = {finding.check for finding in await diagnosis(stack)}
    assert found == {"picker-unread", "streams-failed"} | ({"failed-open"} if opens else set())


async def test_a_printed_configuration_is_one_that_envoy_takes(tmp_path: Path) -> None:
    for name in envoy_config.NAMES:
        listen, admin = free_ports(2)
        text = envoy_config.text(name, listen=f"[::1]:{listen}", admin=f"[::1]:{admin}", picker="picker.svc:9002")
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        command = [envoy_binary(), "--mode", "validate", "--disable-hot-restart", "-c", str(path)]
        result = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 0, result.stderr


async def test_a_picker_that_hangs_up_without_an_error_is_found() -> None:
    async def hang_up(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        await anext(requests)

    async with Stack(Plan(workers=1, envoy="fail-closed")) as stack, httpx.AsyncClient() as client:
        stack.picker.kill()
        server = grpc.aio.server()
        method = grpc.stream_stream_rpc_method_handler(hang_up)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
        server.add_insecure_port(stack.picker_address)
        await server.start()
        try:
            await until(lambda: answers(client, f"{stack.url}/v1/models"))
            assert "half-closed" in {finding.check for finding in await diagnosis(stack)}
        finally:
            await server.stop(0)


async def answers(client: httpx.AsyncClient, url: str) -> bool:
    return (await client.get(url)).status_code == 200


async def test_an_envoy_that_is_not_there_is_an_error_of_its_own() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CannotExamine, match="cannot be read"):
        await asyncio.to_thread(examine_envoy, f"http://127.0.0.1:{port}", "http://127.0.0.1:1")
