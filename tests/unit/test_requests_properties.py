"""Whatever comes in: no exception but a refusal, and no more time and memory than its length is worth."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.prompts.prefix import Rung
from picker.prompts.reader import PromptReader
from picker.requests.model import Dialect, InferenceRequest
from picker.requests.read import APIS, BadRequest, read_request
from picker.requests.rewrite import splice_model
from tests import tiny_models

PATHS = [*(f"/v1/{path}" for path in APIS), "/v1/audio/transcriptions", "/x"]
READER = PromptReader({"m": tiny_models.load("parts"), "n": tiny_models.load("headers")}, 20_000, 20_000)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("m") | st.just("\ufdd0")
)  # fmt: skip
words = st.sampled_from(
    [
        "model", "messages", "prompt", "input", "system", "content", "role", "type", "text", "tools", "function",
        "name", "arguments", "tool_calls", "user", "assistant", "tool", "tool_use", "tool_result", "thinking",
        "image_url", "id", "function_call", "reasoning", "output", "call_id", "summary", "input_schema",
        "parameters", "max_tokens", "n", "chat_template_kwargs", "token_ids", "sampling_params", "reasoning_effort",
        "continue_final_message", "developer", "documents", "instructions", "message", "status", "incomplete",
    ]
)  # fmt: skip
values = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5),
    max_leaves=25,
)
parts = st.lists(values | st.dictionaries(words, values, max_size=4), max_size=3)
messages = st.fixed_dictionaries({"role": words, "content": values | parts}, optional={"tool_calls": values})
likely = st.fixed_dictionaries(
    {"model": st.sampled_from(["m", "n", "o"])},
    optional={
        "messages": st.lists(messages, max_size=3), "prompt": values, "input": values | st.lists(messages, max_size=3),
        "tools": values, "system": values, "chat_template_kwargs": values, "token_ids": st.lists(st.integers()),
        "continue_final_message": st.booleans(), "sampling_params": values, "max_tokens": scalars, "stream": scalars,
    },
)  # fmt: skip


def read(path: str, body: bytes, **headers: str) -> InferenceRequest | None:
    """The request, None for a refusal; the prompt is read as far as to its chain."""
    try:
        request = read_request({":method": "POST", ":path": path, **headers}, body)
    except BadRequest:
        return None
    chain = READER.read(request.prompt, request.model or "m", "", request.cache_salt)
    assert chain == READER.read(request.prompt, request.model or "m", "", request.cache_salt)
    assert chain.prompt_tokens >= len(chain.blocks) * 64 - 1 or chain.rung is Rung.TEXT
    return request


@given(st.sampled_from(PATHS), st.binary(max_size=200) | st.text(max_size=50).map(lambda text: text.encode("utf-16")))
def test_any_bytes(path: str, body: bytes) -> None:
    read(path, body)


@settings(max_examples=600)
@given(st.sampled_from(PATHS), likely | values)
def test_any_json(path: str, body: Any) -> None:
    read(path, json.dumps(body).encode())


@given(st.sampled_from(PATHS), likely, st.data())
def test_any_damage(path: str, body: Any, data: st.DataObject) -> None:
    encoded = bytearray(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for _ in range(data.draw(st.integers(1, 3))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    read(path, bytes(encoded))


@given(st.sampled_from(PATHS), st.text(max_size=20), st.binary(max_size=100))
def test_any_encoding(path: str, encoding: str, body: bytes) -> None:
    read(path, body, **{"content-encoding": encoding})
    assert read(path, gzip.compress(body)[:-1], **{"content-encoding": "gzip"}) is not None


@given(
    st.dictionaries(
        st.sampled_from([":path", ":method", "x-request-timeout", "x-slo-ttft-ms", "x-session-id"]), st.text()
    )
)
def test_any_headers(headers: dict[str, str]) -> None:
    request = read_request(headers, b"")
    assert request.dialect in Dialect
    assert request.terms.timeout_s is None or 0 < request.terms.timeout_s <= 86_400


@given(likely, st.text(max_size=20), st.sampled_from([None, 1]))
def test_a_spliced_body_is_the_same_but_for_the_model(body: dict[str, Any], name: str, indent: int | None) -> None:
    encoded = json.dumps(body, indent=indent).encode()
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    spliced = splice_model(encoded, name)
    if spliced is None:  # only where the strict reader does not understand the rest
        assert any(mark in encoded for mark in (b"NaN", b"Infinity", b"\\ud"))
        return
    assert repr(json.loads(spliced)) == repr(body | {"model": name})
    assert splice_model(spliced, body["model"]) == encoded


BOMBS = {
    "nested arrays": b'{"model":"m","messages":' + b"[" * 1_000_000,
    "nested objects": b'{"model":"m","prompt":' + b'{"a":' * 300_000,
    "nested and closed": b'{"model":"m","messages":' + b"[" * 900 + b"]" * 900 + b"}",
    "a number of 5 MB": b'{"model":"m","max_tokens":' + b"9" * 5_000_000 + b"}",
    "a number beyond floats": b'{"model":"m","max_tokens":1e400,"seed":-1e-400,"n":1' + b"0" * 5000 + b"}",
    "many keys": b'{"model":"m",' + b",".join(b'"k%d":%d' % (n, n) for n in range(300_000)) + b"}",
    "many messages": b'{"model":"m","messages":[' + b"{}," * 300_000 + b"{}]}",
    "many parts": b'{"model":"m","messages":[{"role":"user","content":[' + b'"",' * 100_000 + b'""]}]}',
    "escapes": b'{"model":"m","prompt":"' + b"\\u0041" * 500_000 + b'"}',
    "half surrogates": b'{"model":"m","prompt":"' + b"\\ud800" * 100_000 + b'"}',
    "a long model": b'{"model":"' + b"m" * 5_000_000 + b'"}',
    "zeros": bytes(5_000_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_bomb_costs_no_more_than_its_length(bomb: str, path: str) -> None:
    body = BOMBS[bomb]
    tracemalloc.start()
    started = time.process_time()
    try:
        read(path, body)
        cpu_s = time.process_time() - started
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Generous: what is meant are bodies of kilobytes that take minutes, or gigabytes.
    assert cpu_s < 60
    assert peak < 100 * len(body) + (50 << 20)


def test_a_text_that_no_model_takes_is_not_tokenised() -> None:
    reader = PromptReader({"m": tiny_models.load("bars")}, most_chars=1000)
    request = read_request(
        {":method": "POST", ":path": "/v1/completions"}, json.dumps({"model": "m", "prompt": "x" * 1001}).encode()
    )
    assert reader.read(request.prompt, "m", "", "").rung is Rung.TEXT
