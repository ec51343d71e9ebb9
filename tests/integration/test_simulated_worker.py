from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
import zmq
import zmq.asyncio
from prometheus_client.parser import text_string_to_metric_families

from picker.simulation.kv_publisher import KvFormat
from picker.simulation.worker import BadSettings, Settings, SimulatedWorker

PROMPT = list(range(100, 200))
DEADLINE = 20.0


@asynccontextmanager
async def serving(**changes: Any) -> AsyncIterator[tuple[SimulatedWorker, httpx.AsyncClient]]:
    """A fast worker, and a client for it."""
    worker = SimulatedWorker(Settings(**{"speed": 20.0, **changes}))
    await worker.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{worker.endpoint}", timeout=DEADLINE) as client:
            yield worker, client
    finally:
        await worker.stop()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with serving() as (_, client):
        yield client


async def eventually(what: Callable[[], Any]) -> Any:
    """The first true answer of `what`, an async function."""
    async with asyncio.timeout(DEADLINE):
        while not (answer := await what()):
            await asyncio.sleep(0.01)
    return answer


async def complete(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def events_of(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def stream(client: httpx.AsyncClient, path: str, **fields: Any) -> list[Any]:
    async with client.stream("POST", path, json={"stream": True, **fields}) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return await events_of(response)


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Samples by name, with the values of labels that tell series of a family apart."""
    page = (await client.get("/metrics")).text
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    known = {"engine", "model_name"}
    return {
        ",".join([sample.name, *(value for name, value in sample.labels.items() if name not in known)]): sample.value
        for sample in samples
    }


async def fault(client: httpx.AsyncClient, kind: str, **fields: Any) -> None:
    assert (await client.post("/fault", json={"kind": kind, **fields})).status_code == 200


class TestGeneration:
    """Completions and chat."""

    @pytest.mark.parametrize(
        "prompt, answers, tokens",
        [("Hello there", 1, None), (["a", "b"], 2, None), ([5, 6, 7], 1, 3), ([[5, 6], [7]], 2, 3)],
    )
    async def test_a_prompt_is_text_or_tokens_one_or_many(
        self, client: httpx.AsyncClient, prompt: Any, answers: int, tokens: int | None
    ) -> None:
        answer = await complete(client, prompt=prompt, max_tokens=3)
        assert [choice["index"] for choice in answer["choices"]] == list(range(answers))
        assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
        assert answer["usage"]["completion_tokens"] == 3 * answers
        assert tokens in (None, answer["usage"]["prompt_tokens"])

    async def test_an_answer_has_16_tokens_unless_the_client_says_otherwise(self, client: httpx.AsyncClient) -> None:
        assert (await complete(client, max_tokens=None))["usage"]["completion_tokens"] == 16

    async def test_the_usage_says_what_the_cache_supplied(self, client: httpx.AsyncClient) -> None:
        cached = [(await complete(client))["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
        assert cached == [0, 96]

    async def test_a_stream_says_the_same_as_a_whole_answer(self, client: httpx.AsyncClient) -> None:
        whole = await complete(client, max_tokens=9)
        events = await stream(client, "/v1/completions", prompt=PROMPT, max_tokens=9)
        assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
        assert [event["choices"][0]["finish_reason"] for event in events][-2:] in ([None, "length"], ["length"])
        assert not any("usage" in event for event in events)

    async def test_a_chat_stream_opens_with_the_role_and_ends_with_the_usage(self, client: httpx.AsyncClient) -> None:
        body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 5}
        events = await stream(client, "/v1/chat/completions", **body, stream_options={"include_usage": True})
        assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert events[-1]["choices"] == []
        assert events[-1]["usage"]["completion_tokens"] == 5
        text = "".join(choice["delta"]["content"] for event in events for choice in event["choices"])
        whole = (await client.post("/v1/chat/completions", json=body)).json()
        assert text == whole["choices"][0]["message"]["content"]
        assert whole["object"] == "chat.completion"

    async def test_usage_stands_in_every_event_when_asked_for(self, client: httpx.AsyncClient) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = await stream(client, "/v1/completions", prompt=PROMPT, max_tokens=3, stream_options=options)
        assert [event["usage"]["completion_tokens"] for event in events][-1] == 3
        assert all(event["usage"]["prompt_tokens"] == 100 for event in events)

    async def test_the_next_turn_of_a_chat_finds_the_answer_in_the_cache(self, client: httpx.AsyncClient) -> None:
        messages = [{"role": "user", "content": "Say hello to everybody."}]
        first = (await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 40})).json()
        messages += [first["choices"][0]["message"], {"role": "user", "content": "And now good bye."}]
        second = (await client.post("/v1/chat/completions", json={"messages": messages})).json()
        reused = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reused > first["usage"]["prompt_tokens"] + 16

    async def test_an_answer_is_cut_to_the_context_length(self) -> None:
        async with serving(max_model_len=128) as (_, client):
            assert (await complete(client, max_tokens=100))["usage"]["total_tokens"] == 128

    async def test_answers_name_the_worker_and_echo_the_requests_id(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "abc"})
        assert (response.headers["x-worker"], response.headers["x-request-id"]) == ("w0", "abc")
        assert response.json()["id"] == "cmpl-abc"

    async def test_a_salt_and_an_adapter_keep_caches_apart(self) -> None:
        async with serving(adapters=("lora-a",)) as (_, client):
            for fields in ({}, {"cache_salt": "s"}, {"model": "lora-a"}):
                answer = await complete(client, **fields)
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            assert answer["model"] == "lora-a"

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_client_that_goes_away_frees_the_engine(self, client: httpx.AsyncClient, streaming: bool) -> None:
        async def load() -> int:
            server_load: int = (await client.get("/load")).json()["server_load"]
            return server_load

        await fault(client, "stall")
        body = {"prompt": PROMPT, "stream": streaming}
        asking = asyncio.ensure_future(client.post("/v1/completions", json=body))
        await eventually(load)
        asking.cancel()
        await asyncio.wait([asking])

        async def idle() -> bool:
            return await load() == 0

        await eventually(idle)
        await fault(client, "none")

        async def released() -> bool:
            return (await metrics(client))["vllm:num_requests_running"] == 0

        await eventually(released)
        assert (await metrics(client))["vllm:request_success_total,length"] == 0


ERRORS: dict[str, tuple[str, dict[str, Any] | bytes, int, str | None, str]] = {
    "a model that is not served": ("completions", {"model": "nope", "prompt": "a"}, 404, "model", "tiny-llama."),
    "a model that is not served, streamed": ("completions", {"model": "x", "stream": True}, 404, "model", "x"),
    "broken JSON": ("completions", b'{"prompt": ', 400, "body", "JSON decode error"),
    "no body": ("completions", b"", 400, "body", "Field required"),
    "a wrong type": ("completions", {"prompt": "a", "max_tokens": "many"}, 400, "body.max_tokens", "int"),
    "no prompt": ("completions", {}, 400, "prompt", "non-empty"),
    "a prompt of mixed kinds": ("completions", {"prompt": ["a", 1]}, 400, "body.prompt", "str"),
    "a prompt that is too long": ("completions", {"prompt": [5] * 16_384}, 400, "input_tokens", "16384"),
    "a limit that is too high": ("completions", {"prompt": "a", "max_tokens": 99_999}, 400, "max_tokens", "99999"),
    "a limit of none": ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "at least 1"),
    "an unknown token": ("completions", {"prompt": [99_999]}, 400, None, "99999"),
    "a negative temperature": ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature", "-1.0"),
    "stream options without a stream": (
        "completions",
        {"prompt": "a", "stream_options": {}},
        400,
        "stream_options",
        "",
    ),
    "a chat without messages": ("chat/completions", {"messages": []}, 400, None, "empty conversation"),
    "a message without a role": ("chat/completions", {"messages": [{"content": 5}]}, 400, None, "template"),
}


class TestRefusals:
    """Errors in vLLM's shape."""

    @pytest.mark.parametrize("path, body, status, param, text", ERRORS.values(), ids=ERRORS)
    async def test_it_refuses(
        self, client: httpx.AsyncClient, path: str, body: Any, status: int, param: str | None, text: str
    ) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        response = await client.post(f"/v1/{path}", content=content, headers=headers)
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (status, status, param)
        assert text in error["message"]

    async def test_it_takes_json_only(self, client: httpx.AsyncClient) -> None:
        response = await client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
        assert (response.status_code, "Media Type" in response.text) == (400, True)

    async def test_unknown_paths_and_methods_are_answered_like_fastapi_does(self, client: httpx.AsyncClient) -> None:
        responses = [await client.get("/v1/nothing"), await client.get("/v1/completions")]
        assert [(each.status_code, each.json()) for each in responses] == [
            (404, {"detail": "Not Found"}),
            (405, {"detail": "Method Not Allowed"}),
        ]

    async def test_a_full_queue_is_a_503_and_counted(self) -> None:
        async with serving(max_num_queued_reqs=1) as (_, client):
            await fault(client, "stall")
            async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as first:
                second = await client.post("/v1/completions", json={"prompt": "b"})
                assert (second.status_code, second.json()["error"]["type"]) == (503, "Service Unavailable")
                assert (await client.get("/health")).status_code == 200
                await fault(client, "none")
                await events_of(first)
            rejected = (await metrics(client))["vllm:admission_rejections_total,max_num_queued_reqs"]
            assert rejected == 1


class TestInspection:
    """What pickers and agents ask."""

    async def test_the_small_endpoints_answer(self, client: httpx.AsyncClient) -> None:
        answers = {path: await client.get(path) for path in ("/health", "/ping", "/version", "/load", "/is_sleeping")}
        assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
        assert answers["/version"].json() == {"version": "0.32.0"}
        assert answers["/is_sleeping"].json() == {"is_sleeping": False}

    async def test_models_and_adapters_are_listed(self) -> None:
        async with serving(adapters=("lora-a",)) as (_, client):
            models = (await client.get("/v1/models")).json()["data"]
        listed = [(card["id"], card["parent"], card["max_model_len"]) for card in models]
        assert listed == [("tiny-llama", None, 16_384), ("lora-a", "tiny-llama", None)]

    async def test_tokens_and_text_are_turned_into_each_other(self, client: httpx.AsyncClient) -> None:
        tokens = (await client.post("/tokenize", json={"prompt": "Hello world"})).json()
        assert tokens["count"] == len(tokens["tokens"])
        text = (await client.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
        assert text == {"prompt": "Hello world"}

    async def test_tokenizing_messages_gives_what_a_chat_computes(self, client: httpx.AsyncClient) -> None:
        messages = {"messages": [{"role": "user", "content": "Say hello."}]}
        count = (await client.post("/tokenize", json=messages)).json()["count"]
        chat = (await client.post("/v1/chat/completions", json=messages | {"max_tokens": 1})).json()
        assert chat["usage"]["prompt_tokens"] == count

    async def test_metrics_are_all_there_before_the_first_request(self, client: httpx.AsyncClient) -> None:
        page = (await client.get("/metrics")).text
        for series in (
            'vllm:num_requests_running{engine="0",model_name="tiny-llama"} 0.0',
            'vllm:num_requests_waiting{engine="0",model_name="tiny-llama"} 0.0',
            'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny-llama",reason="capacity"} 0.0',
            'vllm:kv_cache_usage_perc{engine="0",model_name="tiny-llama"} 0.0',
            'vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny-llama"} 0.0',
            'vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny-llama"} 0.0',
            'vllm:engine_sleep_state{engine="0",model_name="tiny-llama",sleep_state="awake"} 1.0',
            'block_size="16"',
            'num_gpu_blocks="1536"',
        ):
            assert series in page

    async def test_metrics_count_what_was_done(self, client: httpx.AsyncClient) -> None:
        for _ in range(2):
            await complete(client, max_tokens=3)
        counted = await metrics(client)
        assert counted["vllm:prefix_cache_queries_total"] == counted["vllm:prompt_tokens_total"] == 200
        assert counted["vllm:prefix_cache_hits_total"] == 96
        assert counted["vllm:generation_tokens_total"] == 6
        assert counted["vllm:request_success_total,length"] == 2
        assert counted["vllm:time_to_first_token_seconds_count"] == 2

    async def test_gauges_show_what_runs_and_what_waits(self, client: httpx.AsyncClient) -> None:
        await fault(client, "slow", factor=20)
        long = [complete(client, prompt=[7] * 1000, max_tokens=4000) for _ in range(3)]
        working = asyncio.gather(*long)

        async def busy() -> bool:
            seen = await metrics(client)
            return seen["vllm:num_requests_running"] == 3 and seen["vllm:kv_cache_usage_perc"] > 0

        await eventually(busy)
        working.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await working


class TestKvEvents:
    """What the ZMQ sockets say."""

    async def test_subscribers_and_replay_tell_the_same_story_in_maps(self) -> None:
        async with serving(adapters=("lora-a",)) as (worker, client):
            source = (await client.get("/kv_event_sources")).json()["0"]
            assert source["topic"] == f"kv@{worker.endpoint}@tiny-llama"
            with zmq.asyncio.Context() as context:
                heard = await self.listen_while(context, source, client)
                replayed = await self.replay(context, source["replay_endpoint"], b"\0" * 8)
        assert [frames[0] for frames in heard] == [source["topic"].encode()] * len(heard)
        assert heard == replayed[-len(heard) :]
        assert [int.from_bytes(frames[1], "big") for frames in replayed] == list(range(len(replayed)))
        when, [event], rank = msgspec.msgpack.decode(replayed[-1][2])
        assert (isinstance(when, float), rank) == (True, 0)
        assert event["type"] == "BlockStored"
        assert event["token_ids"] == PROMPT[:96]
        assert (event["block_size"], len(event["block_hashes"]), event["parent_block_hash"]) == (16, 6, None)
        assert (event["lora_id"], event["lora_name"]) == (1, "lora-a")
        assert event["extra_keys"] == [["lora-a"]] * 6

    async def listen_while(
        self, context: zmq.asyncio.Context, source: dict[str, Any], client: httpx.AsyncClient
    ) -> list[list[bytes]]:
        """Batches from the first that is heard on to that of the adapter's prompt."""
        with context.socket(zmq.SUB) as subscriber:
            subscriber.subscribe("kv@")
            subscriber.connect(source["endpoint"])
            start = 300
            while not await subscriber.poll(50):
                await complete(client, prompt=list(range(start, start + 20)))
                start += 20
            await complete(client, model="lora-a")
            heard = [await subscriber.recv_multipart()]
            while await subscriber.poll(500):
                heard.append(await subscriber.recv_multipart())
        return heard

    async def replay(self, context: zmq.asyncio.Context, endpoint: str, start: bytes) -> list[list[bytes]]:
        """All batches, as topic, sequence, payload, up to the end marker."""
        batches = []
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(endpoint)
            await dealer.send_multipart([b"", start])
            async with asyncio.timeout(DEADLINE):
                while (frames := await dealer.recv_multipart())[2] != b"\xff" * 8:
                    batches.append(frames[1:])
        assert frames == [b"", b"", b"\xff" * 8, b""]
        return batches

    async def test_replay_starts_where_asked_and_keeps_the_newest_only(self) -> None:
        async with serving() as (worker, client):
            for start in (100, 200, 300):
                await complete(client, prompt=list(range(start, start + 20)))
            with zmq.asyncio.Context() as context:
                later = await self.replay(context, worker.publisher.replay_endpoint, b"\0" * 7 + b"\1")
                past = await self.replay(context, worker.publisher.replay_endpoint, b"\0" * 7 + b"\7")
        assert [int.from_bytes(frames[1], "big") for frames in later] == [1, 2]
        assert past == []

    async def test_older_workers_write_arrays(self) -> None:
        async with serving(kv_format=KvFormat.ARRAY) as (worker, client):
            await complete(client)
            with zmq.asyncio.Context() as context:
                [[_, _, payload]] = await self.replay(context, worker.publisher.replay_endpoint, b"\0" * 8)
        _, [[kind, hashes, parent, tokens, block_size, *rest]], _ = msgspec.msgpack.decode(payload)
        assert (kind, len(hashes), parent, tokens, block_size) == ("BlockStored", 6, None, PROMPT[:96], 16)
        assert rest == [None, "GPU", None, [None] * 6]

    @pytest.mark.parametrize(
        "kv_format, cleared", [("map", {"type": "AllBlocksCleared"}), ("array", ["AllBlocksCleared"])]
    )
    async def test_a_reset_is_told_with_the_next_step(self, kv_format: str, cleared: Any) -> None:
        async with serving(kv_format=KvFormat(kv_format)) as (worker, client):
            await complete(client)
            assert (await client.post("/reset_prefix_cache")).status_code == 200
            with zmq.asyncio.Context() as context:
                assert len(await self.replay(context, worker.publisher.replay_endpoint, b"")) == 1
                assert (await complete(client))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
                [_, [_, _, payload]] = await self.replay(context, worker.publisher.replay_endpoint, b"")
        assert msgspec.msgpack.decode(payload)[1][0] == cleared

    async def test_evictions_are_told_hash_by_hash(self) -> None:
        async with serving(num_blocks=16, max_model_len=256) as (worker, client):
            for start in (100, 400):
                await complete(client, prompt=list(range(start, start + 200)))
            with zmq.asyncio.Context() as context:
                [_, [_, _, payload], *_] = await self.replay(context, worker.publisher.replay_endpoint, b"")
        removed = [event for event in msgspec.msgpack.decode(payload)[1] if event["type"] == "BlockRemoved"]
        assert removed
        assert all(len(event["block_hashes"]) == 1 and event["medium"] == "GPU" for event in removed)


class TestFaults:
    """POST /fault."""

    async def test_a_stalled_worker_is_healthy_and_sends_headers_but_no_tokens(self, client: httpx.AsyncClient) -> None:
        await fault(client, "stall")
        async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
            assert response.status_code == 200
            assert (await client.get("/health")).status_code == 200
            reading = asyncio.ensure_future(events_of(response))
            assert not (await asyncio.wait([reading], timeout=0.3))[0]
            await fault(client, "none")
            assert (await reading)[-1]["choices"][0]["finish_reason"] == "length"

    async def test_a_slow_worker_takes_longer(self, client: httpx.AsyncClient) -> None:
        async def seconds() -> float:
            started = asyncio.get_running_loop().time()
            await complete(client, max_tokens=100)
            return asyncio.get_running_loop().time() - started

        quick = await seconds()
        await fault(client, "slow", factor=20)
        assert await seconds() > 2 * quick

    async def test_an_unavailable_worker_answers_everything_with_503(self, client: httpx.AsyncClient) -> None:
        await fault(client, "unavailable")
        answers = [await client.get("/health"), await client.post("/v1/completions", json={"prompt": "a"})]
        assert [answer.status_code for answer in answers] == [503, 503]
        assert answers[0].headers["x-worker"] == "w0"
        await fault(client, "none")
        assert (await client.get("/health")).status_code == 200

    async def test_an_overloaded_worker_refuses_generation_only(self, client: httpx.AsyncClient) -> None:
        await fault(client, "overload")
        refused = await client.post("/v1/completions", json={"prompt": "a"})
        assert (refused.status_code, "busy" in refused.json()["error"]["message"]) == (503, True)
        assert (await client.get("/health")).status_code == 200

    async def test_an_unknown_fault_is_refused(self, client: httpx.AsyncClient) -> None:
        assert (await client.post("/fault", json={"kind": "tired"})).status_code == 400


class TestProcess:
    """Starting and stopping."""

    async def test_stopping_ends_open_answers(self) -> None:
        async with serving() as (worker, client):
            await fault(client, "stall")
            async with client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as response:
                stopping = asyncio.ensure_future(worker.stop())
                assert (await events_of(response))[-1]["choices"][0]["finish_reason"] == "abort"
            await stopping

    async def test_many_workers_live_in_one_process(self) -> None:
        async with serving(name="a") as (_, first), serving(name="b") as (_, second):
            assert [(await each.get("/health")).headers["x-worker"] for each in (first, second)] == ["a", "b"]

    async def test_a_context_longer_than_the_cache_is_refused(self) -> None:
        with pytest.raises(BadSettings, match="--num-blocks"):
            SimulatedWorker(Settings(num_blocks=10))

    async def test_a_port_that_is_taken_is_named_and_nothing_stays_open(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            for name in ("port", "kv_port", "replay_port"):
                with pytest.raises(OSError, match=f"in use|{port}"):
                    SimulatedWorker(Settings(**{name: port}))

    @pytest.mark.parametrize("end, code", [("SIGTERM", 0), ("dead", 1)])
    async def test_the_command_line_serves_until_it_is_ended(self, end: str, code: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = ["-m", "picker.simulation.worker", "--name", "w7", "--port", str(port), "--speed", "20"]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                await eventually(lambda: self.healthy(client))
                if end == "SIGTERM":
                    process.send_signal(signal.SIGTERM)
                else:
                    with pytest.raises(httpx.TransportError):
                        await client.post("/fault", json={"kind": end})
            async with asyncio.timeout(DEADLINE):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == code
        assert len(output.splitlines()) == 1

    async def healthy(self, client: httpx.AsyncClient) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await client.get("/health")).headers["x-worker"] == "w7"
        return False

    async def test_an_answer_that_breaks_off_has_begun_with_200(self, client: httpx.AsyncClient) -> None:
        await fault(client, "break")
        async with client.stream("POST", "/v1/completions", json={"prompt": "a"}) as response:
            assert response.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                await response.aread()
        assert (await client.get("/health")).status_code == 200
        await fault(client, "none")
        await complete(client)

    async def test_a_worker_that_claims_to_be_idle_says_so_while_it_works(self, client: httpx.AsyncClient) -> None:
        await fault(client, "idle")
        working = asyncio.ensure_future(complete(client, max_tokens=400))

        async def load() -> int:
            server_load: int = (await client.get("/load")).json()["server_load"]
            return server_load

        await eventually(load)
        assert (await metrics(client))["vllm:num_requests_running"] == 0
        await working

    async def test_a_worker_that_hoards_finds_nothing_of_what_it_said_it_has(self) -> None:
        async with serving() as (_, client):
            source = (await client.get("/kv_event_sources")).json()["0"]
            await fault(client, "hoard")
            for _ in range(3):
                answer = await complete(client)
                assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
            with zmq.asyncio.Context() as context:
                told = await TestKvEvents().replay(context, source["replay_endpoint"], b"\0" * 8)
        kinds = {event["type"] for frames in told for event in msgspec.msgpack.decode(frames[2])[1]}
        assert kinds == {"BlockStored"}

    async def test_an_impostors_events_come_under_anothers_topic(self) -> None:
        async with serving() as (worker, client):
            await fault(client, "impostor", topic="kv@another@m")
            assert worker.publisher.topic == "kv@another@m"
            await fault(client, "none")
            assert worker.publisher.topic == f"kv@{worker.endpoint}@tiny-llama"
