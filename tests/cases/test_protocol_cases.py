"""Field cases of the protocol that want a real Envoy: what people reported, and that it does not happen here."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from picker.extproc.conversation import Settings
from picker.extproc.events import NotPicked, Picked
from tests.integration.ext_proc import TRANSPORTS
from tests.integration.real_envoy import MODES, WITH_BODY, RealEnvoy, real_envoy, tell

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
CHAT = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello \U0001f600"}]}).encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TRANSPORTS)
async def shared(request: pytest.FixtureRequest) -> AsyncIterator[RealEnvoy]:
    async with real_envoy(request.param, Settings(body_timeout_s=1.0)) as envoy:
        yield envoy


@pytest_asyncio.fixture(loop_scope="module")
async def envoy(shared: RealEnvoy) -> AsyncIterator[RealEnvoy]:
    """The shared one, with nothing of another test left in it, and nothing left behind by this one."""
    shared.picker.picks.clear()
    shared.picker.answer, shared.picker.delay_s = None, 0.0
    shared.streams.clear()
    shared.outcomes.clear()
    yield shared
    await shared.idle()


def chat_of(size: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "x" * size}]}).encode()


async def in_pieces(data: bytes, sizes: list[int], pause_s: float = 0.0) -> AsyncIterator[bytes]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size
        await asyncio.sleep(pause_s)
    yield data[start:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [2, 100_000, 200_000, 1_000_000])
async def test_pr_02_pr_05_every_mode_brings_bodies_of_every_size_through(
    envoy: RealEnvoy, mode: str, size: int
) -> None:
    data = chat_of(size)
    told = await tell(envoy.urls[mode], data)
    assert (told.bytes, told.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert told.port == envoy.upstreams[0], "the first endpoint of the list is the one used"


async def test_pr_02_a_body_of_20_megabytes_passes_in_pieces(envoy: RealEnvoy) -> None:
    data = chat_of(20_000_000)
    told = await tell(envoy.urls["full-duplex"], data)
    assert told.sha256 == hashlib.sha256(data).hexdigest()
    assert max(len(message) for stream in envoy.streams for direction, message in stream if direction == "out") < 65_536


@pytest.mark.parametrize("mode", WITH_BODY)
async def test_pr_13_a_chunked_body_arrives_whole(envoy: RealEnvoy, mode: str) -> None:
    sizes = [1, 20_000, 3, 7_000, 62_000, 4_096]
    data = chat_of(100_000)
    async with httpx.AsyncClient(timeout=20) as client:
        response = await client.post(envoy.urls[mode] + "/x", content=in_pieces(data, sizes, 0.01))
    told = response.json()
    assert (told["bytes"], told["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    if mode != "buffered-partial":
        assert envoy.picker.picks[0].body == data


@pytest.mark.parametrize("mode", WITH_BODY)
@pytest.mark.parametrize("new_model", ["a-much-longer-model-name/with-a-lora-7", "s"])
async def test_pr_03_pr_14_a_rewritten_body_has_its_own_length(envoy: RealEnvoy, mode: str, new_model: str) -> None:
    body = CHAT if "partial" in mode else json.dumps({"model": "fast", "prompt": "\U0001f600" * 40_000}).encode()
    new = body.replace(b'"m"', f'"{new_model}"'.encode()).replace(b'"fast"', f'"{new_model}"'.encode())
    envoy.picker.answer = Picked(envoy.picker.endpoints, None, new_body=new)
    told = await tell(envoy.urls[mode], body)
    assert (told.bytes, told.sha256) == (len(new), hashlib.sha256(new).hexdigest())
    lengths = told.values("content-length")
    assert lengths in ([], [str(len(new))])


async def test_pr_03_a_large_rewritten_body_goes_in_pieces_too(envoy: RealEnvoy) -> None:
    new = chat_of(6_000_000)
    envoy.picker.answer = Picked(envoy.picker.endpoints, None, new_body=new)
    told = await tell(envoy.urls["full-duplex"], CHAT)
    assert told.sha256 == hashlib.sha256(new).hexdigest()
    assert max(len(message) for stream in envoy.streams for direction, message in stream if direction == "out") < 65_536


@pytest.mark.parametrize("mode", ["response-buffered", "response-streamed", "both-full-duplex"])
async def test_pr_04_a_response_of_44_megabytes_reaches_the_client(envoy: RealEnvoy, mode: str) -> None:
    # Envoy itself buffers up to its limit (64 MiB in the shipped files); below it we must not be in the way.
    data = b"x" * 44_000_000
    async with httpx.AsyncClient(timeout=60) as client:
        response = await _raw_post(client, envoy.urls[mode] + "/gzip", data)
    assert response == (200, hashlib.sha256(data).hexdigest())


async def _raw_post(client: httpx.AsyncClient, url: str, data: bytes) -> tuple[int, str]:
    digest = hashlib.sha256()
    async with client.stream("POST", url, content=data) as response:
        async for piece in response.aiter_raw():
            digest.update(piece)
    return response.status_code, digest.hexdigest()


async def test_pr_09_an_offer_of_h2c_is_an_ordinary_post(envoy: RealEnvoy) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
    for mode in WITH_BODY:
        told = await tell(envoy.urls[mode], CHAT, headers=offer)
        assert told.bytes == len(CHAT)
        assert envoy.picker.picks[-1].body == CHAT


async def test_pr_18_se_01_the_clients_destination_is_replaced(envoy: RealEnvoy) -> None:
    forged = {"x-gateway-destination-endpoint": "169.254.169.254:80"}
    for mode, url in envoy.urls.items():
        for content in (None, CHAT):
            told = await tell(url, content, headers=forged)
            assert told.values("x-gateway-destination-endpoint") == [",".join(envoy.picker.endpoints)], mode


async def test_se_01_a_refused_request_goes_nowhere(envoy: RealEnvoy) -> None:
    envoy.picker.answer = NotPicked(503, "no-workers", "None.")
    forged = {"x-gateway-destination-endpoint": f"127.0.0.1:{envoy.upstreams[1]}"}
    async with httpx.AsyncClient() as client:
        for url in envoy.urls.values():
            response = await client.post(url + "/x", content=CHAT, headers=forged)
            assert (response.status_code, response.headers["x-picker-reason"]) == (503, "no-workers")


async def test_se_01_a_request_that_we_leave_to_envoy_is_not_the_clients_to_send(envoy: RealEnvoy) -> None:
    envoy.picker.answer = Picked(())
    for url in envoy.urls.values():
        told = await tell(url, CHAT, headers={"x-gateway-destination-endpoint": "169.254.169.254:80"})
        assert told.port in envoy.upstreams
        assert told.values("x-gateway-destination-endpoint") == []


async def test_se_02_se_17_headers_that_speak_for_us_do_not_reach_a_worker(envoy: RealEnvoy) -> None:
    forged = {
        "x-gateway-destination-endpoint-subset": "10.0.0.1:1",
        "x-gateway-destination-endpoint-served": "10.0.0.1:1",
        "x-prefiller-host-port": "10.0.0.1:1",
        "x-data-parallel-host-port": "10.0.0.1:1",
        "x-picker-reason": "because",
    }
    for mode, url in envoy.urls.items():
        told = await tell(url, CHAT, headers=forged)
        assert not {name for name, _ in told.headers} & set(forged), mode
    assert all(pick.subset is None for pick in envoy.picker.picks)


async def test_se_02_where_a_prompt_is_computed_first_is_ours_to_say(envoy: RealEnvoy) -> None:
    envoy.picker.answer = Picked(envoy.picker.endpoints, None, prefiller="10.0.0.9:8000")
    for mode, url in envoy.urls.items():
        told = await tell(url, CHAT, headers={"x-prefiller-host-port": "10.0.0.1:1"})
        assert told.values("x-prefiller-host-port") == ["10.0.0.9:8000"], mode


async def test_pr_20_the_next_of_the_list_serves_when_the_first_refuses(envoy: RealEnvoy) -> None:
    first, second = envoy.upstreams
    for mode in ("buffered", "full-duplex", "none"):
        told = await tell(envoy.urls[mode], CHAT, path=f"/fail/{first}")
        assert (told.port, told.bytes) == (second, len(CHAT)), mode
    assert len(envoy.picker.picks) == 3, "no request was picked twice"


async def test_pr_26_pr_42_an_upstreams_error_or_compressed_answer_passes_as_it_is(envoy: RealEnvoy) -> None:
    packed = gzip.compress(b'{"usage": {"prompt_tokens": 1}}')
    async with httpx.AsyncClient() as client:
        for mode in ("buffered", "response-buffered", "response-streamed", "both-full-duplex"):
            for status in (200, 429):
                async with client.stream(
                    "POST", f"{envoy.urls[mode]}/gzip?status={status}", content=packed
                ) as response:
                    raw = b"".join([piece async for piece in response.aiter_raw()])
                assert (response.status_code, response.headers["content-encoding"], raw) == (status, "gzip", packed)


async def test_pr_28_a_body_behind_expect_100_continue_is_waited_for(envoy: RealEnvoy) -> None:
    for mode in ("buffered", "full-duplex"):
        host, port = envoy.urls[mode].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: {len(CHAT)}\r\nexpect: 100-continue\r\n\r\n"
        writer.write(head.encode())
        assert b"100" in await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.write(CHAT)
        assert b" 200 " in await reader.readline()
        writer.close()


async def test_pr_28_a_body_that_never_comes_is_refused(envoy: RealEnvoy) -> None:
    for mode in ("full-duplex", "streamed-unasked"):
        host, port = envoy.urls[mode].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        assert b" 408 " in await reader.readline()
        writer.close()


@pytest.mark.parametrize("mode", MODES)
async def test_pr_29_pr_30_pr_40_requests_without_a_body_are_picked_at_once(envoy: RealEnvoy, mode: str) -> None:
    for method in ("GET", "OPTIONS", "POST"):
        told = await tell(envoy.urls[mode], method=method, path="/reset_prefix_cache")
        assert told.bytes == 0
    async with httpx.AsyncClient() as client:
        assert (await client.head(envoy.urls[mode] + "/v1/models")).status_code == 200
    assert {pick.body for pick in envoy.picker.picks} == {b""}


async def test_pr_34_a_slow_pick_is_no_error(envoy: RealEnvoy) -> None:
    for delay_s in (0.05, 0.19, 0.25, 1.0):
        envoy.picker.delay_s = delay_s
        for mode in ("buffered", "full-duplex", "streamed-unasked"):
            assert (await tell(envoy.urls[mode], CHAT)).bytes == len(CHAT)


async def test_pr_41_odd_headers_pass_untouched(envoy: RealEnvoy) -> None:
    odd = [
        (b"x-twice", b"one"), (b"X-Twice", b"two"), (b"x-bytes", b"caf\xe9 \xff"), (b"x-long", b"v" * 40_000),
        (b"content-type", b"application/json"),
    ]  # fmt: skip
    told = await tell(envoy.urls["buffered"], CHAT, headers=odd)
    assert told.values("x-twice") == ["one", "two"]
    assert told.values("x-bytes")[0].encode("latin-1") == b"caf\xe9 \xff"
    assert len(told.values("x-long")[0]) == 40_000
    assert envoy.picker.picks[0].headers["x-twice"] == "one", "of a repeated header the first counts"


async def test_pr_43_streamed_pieces_reach_the_upstream_once(envoy: RealEnvoy) -> None:
    for delay_s in (0.0, 0.15):
        envoy.picker.delay_s = delay_s
        for mode in ("streamed", "streamed-unasked"):
            async with httpx.AsyncClient(timeout=20) as client:
                data = chat_of(300_000)
                response = await client.post(envoy.urls[mode] + "/x", content=in_pieces(data, [50_000] * 4, 0.01))
            assert response.json()["bytes"] == len(data)


async def test_a_streamed_answer_passes_event_by_event_in_every_mode(envoy: RealEnvoy) -> None:
    async with httpx.AsyncClient() as client:
        for mode, url in envoy.urls.items():
            response = await client.post(f"{url}/stream?pieces=20", content=CHAT)
            assert response.text == "".join(f"data: {number}\n\n" for number in range(20)), mode


async def test_trailers_end_a_body(envoy: RealEnvoy) -> None:
    head = b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\nconnection: close\r\n\r\n"
    for mode in ("full-duplex", "streamed-unasked", "buffered-trailers", "both-full-duplex"):
        host, port = envoy.urls[mode].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head + b"4\r\n{   \r\n1\r\n}\r\n0\r\nx-sum: 1\r\n\r\n")
        answer = await reader.read()
        assert b" 200 " in answer.splitlines()[0], (mode, answer[:300])
        assert b'"bytes": 5' in answer
        assert envoy.picker.picks[-1].body == b"{   }"
        writer.close()


async def test_pr_11_a_client_that_leaves_is_no_error(envoy: RealEnvoy) -> None:
    envoy.picker.delay_s = 0.1
    for mode in ("buffered", "full-duplex"):
        host, port = envoy.urls[mode].removeprefix("http://").split(":")
        for sent in (
            b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{",
            b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n",
        ):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
    await envoy.idle()
