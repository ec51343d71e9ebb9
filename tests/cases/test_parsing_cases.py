"""Field cases of parsing: bodies that broke other gateways, sent through a real Envoy.

For each, what the picker makes of what Envoy shows it, and that the worker gets the client's bytes.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import brotli
import httpx
import pytest
import pytest_asyncio
import zstandard

from picker.extproc.events import Picked
from picker.prompts import chain
from picker.prompts.prefix import LOAD_ONLY, PrefixChain, Rung
from picker.prompts.reader import PromptReader
from picker.requests.compression import MOST_BYTES
from picker.requests.model import ChatPrompt, Dialect, InferenceRequest, Prompt, TextPrompt, TokenPrompt
from picker.requests.read import BadRequest, read_request
from picker.requests.rewrite import splice_model
from picker.requests.usage import Unreadable, Usage, read_usage
from tests import tiny_models
from tests.integration.real_envoy import RealEnvoy, real_envoy, tell

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HELLO = [{"role": "user", "content": "hi"}]
REFUSED = "refused"
BY_LOAD = None
"""No prompt that we understand: the engine says what is wrong with it, if anything is."""

MODEL = tiny_models.load("chatml")
READER = PromptReader({"m": MODEL})


@dataclass
class Case:
    """A request, and what it is taken for: a prompt, BY_LOAD, or REFUSED."""

    path: str
    body: bytes
    prompt: Prompt | str | None = BY_LOAD
    model: str | None = "m"
    headers: dict[str, str] = field(default_factory=dict)


def case(path: str, body: dict[str, Any], prompt: Prompt | str | None = BY_LOAD, **more: Any) -> Case:
    return Case(path, json.dumps(body, ensure_ascii=False).encode(), prompt, **more)


def chat(content: Any, prompt: Prompt | str | None = None, **more: Any) -> Case:
    """A chat of one message; it is taken for itself unless the case says otherwise."""
    messages = [{"role": "user", "content": content}]
    return case(CHAT, {"model": "m", "messages": messages}, prompt or ChatPrompt(messages), **more)


def raw(body: bytes, prompt: Prompt | str | None = BY_LOAD, path: str = CHAT, **more: Any) -> Case:
    return Case(path, body, prompt, **more)


BIG = json.dumps({"model": "m", "messages": [{"role": "user", "content": "packed " * 45_000}]}).encode()
BIG_CHAT = ChatPrompt([{"role": "user", "content": "packed " * 45_000}])
CALL = '[{"id":"c","type":"function","function":{"name":"f","arguments":"{\\"x\\":\\"\\ud800\\"}"}}]'

CASES: dict[str, list[Case]] = {
    "pa_01 chats need no prompt, and none is no error": [
        chat("hi"), case(CHAT, {"model": "m"}), case("/v1/x", {"model": "m"}, model=None),
    ],
    "pa_02 content as a list of parts": [chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])],
    "pa_04 a list of strings is placed by its first": [
        case(COMPLETIONS, {"model": "m", "prompt": ["abc", "abd"], "max_tokens": 1}, TextPrompt("abc")),
    ],
    "pa_05 token ids": [
        case(COMPLETIONS, {"model": "m", "prompt": [1, 2, 3, 4]}, TokenPrompt([1, 2, 3, 4])),
        case(COMPLETIONS, {"model": "m", "prompt": [1, 2**31 + 1]}, TokenPrompt([1, 2**31 + 1])),
        case(COMPLETIONS, {"model": "m", "prompt": [1, 2**33]}, TokenPrompt([1, 2**33])),
        case(COMPLETIONS, {"model": "m", "prompt": [-1]}, TokenPrompt([-1])),
        case(COMPLETIONS, {"model": "m", "prompt": [1.0]}),
    ],
    "pa_06 lists of token lists": [
        case(COMPLETIONS, {"model": "m", "prompt": [[1, 2, 3], [1, 2, 9]]}, TokenPrompt([1, 2, 3])),
        case(COMPLETIONS, {"model": "m", "prompt": [[]]}),
        case(COMPLETIONS, {"model": "m", "prompt": []}),
        case(COMPLETIONS, {"model": "m", "prompt": ["a", [1]]}),
    ],
    "pa_08 no messages, or none that are any": [
        case(CHAT, {"model": "m", "messages": []}),
        case(CHAT, {"model": "m", "messages": None}),
        case(CHAT, {"model": "m", "messages": [None]}),
        case(CHAT, {"messages": [{}]}, ChatPrompt([{}]), model=None),
    ],
    "pa_09 embeddings of all shapes": [
        case("/v1/embeddings", {"model": "m", "input": sent, "encoding_format": "base64"})
        for sent in ("text", ["a", "b"], [1, 2, 3], [[1, 2], [3]])
    ],
    "pa_10 responses with items of new kinds": [
        case(
            RESPONSES,
            {
                "model": "m", "instructions": "be brief",
                "input": [
                    {"type": "additional_tools", "role": "developer", "tools": []},
                    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                    {"type": "function_call_output", "call_id": "c", "output": "42"},
                ],
            },
            ChatPrompt([
                {"role": "system", "content": "be brief"},
                {"type": "additional_tools", "role": "developer", "tools": []},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
                {"role": "tool", "content": "42", "tool_call_id": "c"},
            ]),
        ),
        case(RESPONSES, {"model": "m", "input": "hi"}, ChatPrompt(HELLO)),
        case(RESPONSES, {"model": "m", "input": HELLO}, ChatPrompt(HELLO)),
        case(RESPONSES, {"model": "m", "input": [{"type": "hologram"}]}),
    ],
    "pa_11 a responses body on the chat path": [
        case(CHAT, {"model": "m", "input": HELLO, "stream": True}, ChatPrompt(HELLO)),
    ],
    "pa_13 score, rerank, pooling, classify": [
        case("/v1/score", {"model": "m", "text_1": ["a"], "text_2": ["b"]}),
        case("/v1/rerank", {"model": "m", "query": "q", "documents": ["d1", "d2"]}),
        case("/pooling", {"model": "m", "input": "x"}),
        case("/classify", {"model": "m", "input": "x"}),
    ],
    "pa_14 compressed bodies": [
        raw(gzip.compress(BIG), BIG_CHAT, headers={"content-encoding": "gzip"}),
        raw(zlib.compress(BIG), BIG_CHAT, headers={"content-encoding": "deflate"}),
        raw(BIG, BIG_CHAT, headers={"content-encoding": "identity"}),
        raw(zstandard.compress(BIG), BIG_CHAT, headers={"content-encoding": "zstd"}),
        raw(brotli.compress(BIG), BIG_CHAT, headers={"content-encoding": "br"}),
        raw(brotli.compress(gzip.compress(BIG)), BIG_CHAT, headers={"content-encoding": "gzip, br"}),
        raw(b"\x1f\x9d" + BIG, headers={"content-encoding": "compress"}, model=None),
        raw(
            gzip.compress(BIG), replace(BIG_CHAT, joins_system=True), "/v1/messages",
            headers={"content-encoding": "gzip"},
        ),
    ],
    "pa_15 bombs and half frames": [
        raw(gzip.compress(bytes(MOST_BYTES + 1)), headers={"content-encoding": "gzip"}, model=None),
        raw(gzip.compress(BIG)[:-20], headers={"content-encoding": "gzip"}, model=None),
        raw(gzip.compress(BIG[:99]) + gzip.compress(BIG[99:]), BIG_CHAT, headers={"content-encoding": "gzip"}),
        raw(zstandard.compress(BIG)[:-9], headers={"content-encoding": "zstd"}, model=None),
        raw(
            zstandard.compress(BIG[:99]) + zstandard.compress(BIG[99:]), BIG_CHAT,
            headers={"content-encoding": "zstd"},
        ),
        raw(zstandard.compress(bytes(MOST_BYTES + 1)), headers={"content-encoding": "zstd"}, model=None),
        raw(brotli.compress(BIG)[:-9], headers={"content-encoding": "br"}, model=None),
        raw(brotli.compress(bytes(MOST_BYTES + 1)), headers={"content-encoding": "br"}, model=None),
        raw(BIG, headers={"content-encoding": "gzip"}, model=None),
    ],
    "pa_18 escapes": [
        raw(
            b'{"model":"m","messages":[{"role":"user","content":"<think>a && b</think>\\u2028\\u00e9\\/"}]}',
            ChatPrompt([{"role": "user", "content": "<think>a && b</think>\u2028é/"}]),
        ),
    ],
    "pa_19 numbers": [
        raw(
            b'{"model":"m","prompt":"x","temperature":0.7,"top_p":0.1,"max_tokens":1024.0,"x":1e2,"y":-0}',
            TextPrompt("x"), COMPLETIONS,
        ),
    ],
    "pa_21 half a surrogate pair": [
        raw(b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}'),
        raw(b'{"model":"m","messages":[{"role":"user","content":"\\udc00x"}]}'),
        raw(b'{"model":"m","messages":[{"role":"user","content":"\\ud83d plain"}]}'),
        raw(b'{"model":"m","messages":[{"role":"assistant","content":"","tool_calls":%s}]}' % CALL.encode()),
        raw(b'{"model":"m","prompt":"\\ud800"}', path=COMPLETIONS),
    ],
    "pa_23 no numbers": [
        raw(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":NaN}', ChatPrompt(HELLO)),
        raw(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"top_p":Infinity}', ChatPrompt(HELLO)),
        raw(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"top_p":-Infinity}', ChatPrompt(HELLO)),
        raw(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":NaN}', ChatPrompt(HELLO)),
        raw(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":"NaN"}', ChatPrompt(HELLO)),
    ],
    "pa_24 numbers out of range": [
        raw(b'{"model":"m","prompt":"x","max_tokens":1e400}', TextPrompt("x"), COMPLETIONS),
        raw(b'{"model":"m","prompt":"x","seed":-1e-400}', TextPrompt("x"), COMPLETIONS),
        raw(b'{"model":"m","prompt":"x","n":1%s}' % (b"0" * 5000), TextPrompt("x"), COMPLETIONS),
        raw(b'{"model":"m","prompt":"x","x":%s}' % (b"7" * 5_000_000), TextPrompt("x"), COMPLETIONS),
    ],
    "pa_26 booleans as strings": [
        case(CHAT, {"model": "m", "messages": HELLO, **fields}, ChatPrompt(HELLO))
        for fields in (
            {"stream": True, "stream_options": {"include_usage": "true"}},
            {"stream": "true"}, {"stream": 1}, {"stream": None},
        )
    ],
    "pa_29 a stream without usage": [
        case(CHAT, {"model": "m", "stream": True, "messages": HELLO}, ChatPrompt(HELLO)),
    ],
    "pa_30 models of all kinds": [
        case(CHAT, {"messages": HELLO}, ChatPrompt(HELLO), model=None),
        *(
            case(CHAT, {"model": sent, "messages": HELLO}, ChatPrompt(HELLO), model=read)
            for sent, read in (
                (None, None), (7, None), (["a"], None), ({}, None), ("", ""), (" m ", " m "), ("M", "M"),
                ("x" * 1_000_000, "x" * 1_000_000), ("org/m:lora@v2", "org/m:lora@v2"), ("a\n\0b", "a\n\0b"),
            )
        ),
    ],
    "pa_32 parts without text": [
        chat([{"type": "text"}, {"type": "text", "text": None}, {"text": "no type"}, "bare string", None, 5]),
        chat([{"type": "text"}, {"type": "text", "text": None}, "bare string"]),
    ],
    "pa_33 messages that are no list": [
        case(CHAT, {"model": "m", "messages": "hello"}),
        case(CHAT, {"messages": {"role": "user", "content": "x"}}, model=None),
    ],
    "pa_36 no object": [
        raw(body, REFUSED)
        for body in (
            b"[]", b'"str"', b"12", b"null", b"   ", b'{"model":"m"}{"model":"m"}', b'{"model":"m",}', b"{'model':'m'}",
            b'{"model":"m"} // x', b'{"model":"\x00"}', b"\x00" * 10, b"[" * 1_000_000,
        )
    ],
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[RealEnvoy]:
    async with real_envoy("http2") as envoy:
        yield envoy


@pytest_asyncio.fixture(loop_scope="module")
async def envoy(shared: RealEnvoy) -> AsyncIterator[RealEnvoy]:
    shared.picker.picks.clear()
    shared.picker.answer = None
    shared.streams.clear()
    yield shared
    await shared.idle()


async def arrives(envoy: RealEnvoy, mode: str, each: Case, content: Any = None) -> None:
    """Sends it; the worker gets the same bytes, and the picker saw them too."""
    headers = {"content-type": "application/json", **each.headers}
    told = await tell(envoy.urls[mode], each.body if content is None else content, path=each.path, headers=headers)
    assert (told.bytes, told.sha256) == (len(each.body), hashlib.sha256(each.body).hexdigest())
    assert told.values("content-encoding") == [value for name, value in each.headers.items() if name != "content-type"]
    assert envoy.picker.picks[-1].body == each.body


def read(envoy: RealEnvoy) -> InferenceRequest:
    """What the picker makes of the last request."""
    pick = envoy.picker.picks[-1]
    return read_request(pick.headers, pick.body, pick.is_whole)


def prefix(request: InferenceRequest) -> PrefixChain:
    return READER.read(request.prompt, request.model or "m", "", "")


@pytest.mark.parametrize("mode", ["buffered", "full-duplex"])
@pytest.mark.parametrize("name", CASES)
async def test_bodies_that_broke_others(envoy: RealEnvoy, name: str, mode: str) -> None:
    for each in CASES[name]:
        await arrives(envoy, mode, each)
        if each.prompt == REFUSED:
            with pytest.raises(BadRequest):
                read(envoy)
            continue
        request = read(envoy)
        assert request.model == each.model
        assert (request.prompt.read() if request.prompt else None) == each.prompt
        found = prefix(request)
        assert found == prefix(request), "the same input has the same chain"
        assert found.rung is not Rung.LOAD or not found.blocks


async def test_pa_02_parts_and_a_string_have_the_prefix_that_the_worker_sees(envoy: RealEnvoy) -> None:
    lines = ["a" * 300, "b" * 300]
    await arrives(envoy, "buffered", chat([{"type": "text", "text": line} for line in lines]))
    in_parts = prefix(read(envoy))
    await arrives(envoy, "buffered", chat("\n".join(lines)))
    assert in_parts == prefix(read(envoy))
    assert in_parts.rung is Rung.TOKENS and in_parts.blocks


async def test_pa_05_ids_are_hashed_as_ids_and_odd_ones_not_at_all(envoy: RealEnvoy) -> None:
    ids = list(range(128))
    await arrives(envoy, "buffered", case(COMPLETIONS, {"model": "m", "prompt": ids}))
    as_ids = prefix(read(envoy))
    assert as_ids.blocks == chain.index_blocks(chain.scope("m"), ids)
    await arrives(envoy, "buffered", case(COMPLETIONS, {"model": "m", "prompt": ",".join(map(str, ids))}))
    assert not set(as_ids.blocks) & set(prefix(read(envoy)).blocks)
    for odd in ([-1] * 64, [2**32] * 64, [1.0] * 64):
        await arrives(envoy, "buffered", case(COMPLETIONS, {"model": "m", "prompt": odd}))
        assert prefix(read(envoy)) == LOAD_ONLY


@pytest.mark.parametrize("mode", ["buffered", "full-duplex"])
async def test_pa_07_a_batch_is_placed_and_not_touched(envoy: RealEnvoy, mode: str) -> None:
    await arrives(envoy, mode, case(COMPLETIONS, {"model": "m", "prompt": ["alpha", "beta"]}))


@pytest.mark.parametrize("mode", ["buffered", "full-duplex"])
@pytest.mark.parametrize(
    "rest",
    [
        b'"prompt":"x","seed":9007199254740993,"logit_bias":{"50256":-100},"user":12345678901234567890}',
        '"prompt":"<think>a && b</think>\u2028\\u00e9\\/","temperature":0.7,"x":1e2,"y":-0,"z":1024.0 }\n'.encode(),
    ],
    ids=["pa_16 integers", "pa_18 pa_19 escapes and numbers"],
)
async def test_a_rewrite_changes_the_models_value_only(envoy: RealEnvoy, mode: str, rest: bytes) -> None:
    body, wanted = (b'{ "model" : "%s", %s' % (name, rest) for name in (b"alias", b"the-model-itself"))
    spliced = splice_model(body, "the-model-itself")
    assert spliced == wanted
    envoy.picker.answer = Picked(envoy.picker.endpoints, None, new_body=spliced)
    told = await tell(envoy.urls[mode], body, path=COMPLETIONS)
    assert (told.bytes, told.sha256) == (len(wanted), hashlib.sha256(wanted).hexdigest())


@pytest.mark.parametrize("text", ["é", "日", "🙂", "e\u0301", "👩\u200d👩\u200d👧"])
@pytest.mark.parametrize("model", ["m", "untokenised"])
async def test_pa_22_blocks_end_within_characters(envoy: RealEnvoy, text: str, model: str) -> None:
    for offset in range(4):
        prompt = "x" * offset + text * 600
        await arrives(envoy, "buffered", case(COMPLETIONS, {"model": model, "prompt": prompt}))
        shorter = prefix(read(envoy))
        assert shorter.blocks
        await arrives(envoy, "buffered", case(COMPLETIONS, {"model": model, "prompt": prompt + text * 50}))
        kept = len(shorter.blocks) - 1
        assert prefix(read(envoy)).blocks[:kept] == shorter.blocks[:kept]


@pytest.mark.parametrize(
    ("body", "cut"),
    [
        ('{"model":"m","prompt":"🙂"}'.encode(), b'{"model":"m","prompt":"' + "🙂".encode()[:1]),
        (b'{"model":"m","prompt":"\\u263a"}', b'{"model":"m","prompt":"\\u26'),
        (b'{"model":"m","prompt":"\\n"}', b'{"model":"m","prompt":"\\'),
        (b'{"max_tokens":1234,"model":"m","prompt":"x"}', b'{"max_tokens":12'),
        (b'{"stream":true,"model":"m","prompt":"x"}', b'{"stream":tr'),
    ],
)
async def test_pa_27_a_body_cut_anywhere_reads_as_the_whole(envoy: RealEnvoy, body: bytes, cut: bytes) -> None:
    await arrives(envoy, "full-duplex", raw(body, path=COMPLETIONS))
    whole = read(envoy)
    await arrives(envoy, "full-duplex", raw(body, path=COMPLETIONS), _pieces([cut, body[len(cut) :]]))
    split = read(envoy)
    assert whole.prompt and split.prompt
    assert (whole.model, whole.max_tokens, whole.stream) == (split.model, split.max_tokens, split.stream)
    assert whole.prompt.read() == split.prompt.read()


async def test_pa_27_a_body_of_single_bytes_reads_as_the_whole(envoy: RealEnvoy) -> None:
    each = chat("ü🙂 \n" * 700)
    await arrives(envoy, "full-duplex", each, _pieces([bytes([byte]) for byte in each.body]))
    request = read(envoy)
    assert request.prompt and request.prompt.read() == each.prompt


USAGE = b'"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens":3}'
WHOLE = b'{"choices":[{"message":{"content":"say \\"usage\\": {}"}}],%b,"kv_transfer_params":null}'
EVENTS = 'data: {"choices":[{"delta":{"content":"日本語 🙂"}}]}\n\n'.encode() * 20
RESPONSES_SEEN = ["both-full-duplex", "response-streamed"]


async def answer(envoy: RealEnvoy, mode: str, body: bytes, kind: str, every: int = 0) -> bytes:
    """What our side has seen of the end of a response whose bytes have all reached the client."""
    envoy.picker.tails.clear()
    async with httpx.AsyncClient(base_url=envoy.urls[mode], timeout=20) as client:
        response = await client.post(f"/answer?every={every}", content=body, headers={"content-type": kind})
    assert (response.status_code, response.content) == (200, body)
    await envoy.idle()
    [tail] = envoy.picker.tails
    return tail


@pytest.mark.parametrize("mode", RESPONSES_SEEN)
@pytest.mark.parametrize(
    "usage",
    [
        b'"oops"', b"[]", b'{"prompt_tokens":"1024"}', b'{"prompt_tokens_details":0}', b'{"prompt_tokens":-5}',
        b'{"prompt_tokens":1e30}', b'{"prompt_tokens":1,"prompt_tokens_details":7}', b"{", b"true", b"[" * 3000,
        b'{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":[]}}', b'{"prompt_tokens":NaN}',
    ],
)  # fmt: skip
async def test_pa_25_a_usage_of_any_type_passes_and_counts_as_unreadable(
    envoy: RealEnvoy, usage: bytes, mode: str
) -> None:
    tail = await answer(envoy, mode, b'{"choices":null,"usage":%b}' % usage, "application/json")
    with pytest.raises(Unreadable):
        read_usage(tail)


@pytest.mark.parametrize("mode", RESPONSES_SEEN)
async def test_pa_25_a_usage_that_is_one_is_read(envoy: RealEnvoy, mode: str) -> None:
    tail = await answer(envoy, mode, WHOLE % USAGE, "application/json")
    assert read_usage(tail) == Usage(prompt=9, output=3, cached=4)


@pytest.mark.parametrize("mode", RESPONSES_SEEN)
@pytest.mark.parametrize("every", [1, 2, 3, 5, 64, 0])
async def test_pa_28_a_stream_cut_anywhere_tells_the_same(envoy: RealEnvoy, every: int, mode: str) -> None:
    body = EVENTS + b'data: {"choices":[],%b}\n\ndata: [DONE]\n\n' % USAGE
    tail = await answer(envoy, mode, body, "text/event-stream", every)
    assert read_usage(tail) == Usage(prompt=9, output=3, cached=4)


@pytest.mark.parametrize("mode", RESPONSES_SEEN)
@pytest.mark.parametrize("end", [b"data: [DONE]\n\n", b"data:[DONE]\n\n", b"data: [DONE]\n\n:keepalive\n\n", b""])
async def test_pa_34_the_marker_at_the_end_is_nothing_to_us(envoy: RealEnvoy, end: bytes, mode: str) -> None:
    tail = await answer(envoy, mode, EVENTS + end, "text/event-stream")
    assert read_usage(tail) is None
    tail = await answer(envoy, mode, EVENTS + b'data: {"choices":[],%b}\n\n' % USAGE + end, "text/event-stream")
    assert read_usage(tail) == Usage(prompt=9, output=3, cached=4)


async def test_pa_36_the_connection_is_of_use_afterwards(envoy: RealEnvoy) -> None:
    async with httpx.AsyncClient(base_url=envoy.urls["buffered"], timeout=20) as client:
        for body in (b"[", b"", b"\x00", json.dumps({"model": "m"}).encode()):
            response = await client.post(CHAT, content=body)
            assert (response.status_code, response.json()["bytes"]) == (200, len(body))


async def test_errors_have_the_shape_of_the_path_that_was_asked(envoy: RealEnvoy) -> None:
    await arrives(envoy, "buffered", case("/v1/messages?beta=true", {"model": "m", "messages": HELLO}))
    assert read(envoy).dialect is Dialect.ANTHROPIC


async def _pieces(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)
