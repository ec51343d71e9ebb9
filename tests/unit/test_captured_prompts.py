"""Prompts against a real vLLM 0.32: what it answered, and the KV events that it published for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import picker
from picker.agent.blocks import BlockTable
from picker.agent.events import Event, Stored, decode
from picker.prompts.prefix import PrefixChain
from picker.prompts.reader import PromptReader
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.read import read_request

MODEL = "tiny-llama"
TINY = ModelTokenizer.load(Path(picker.__file__).parent / "simulation/data/tiny-llama")
READER = PromptReader({MODEL: TINY})
EVENTS = Path(__file__).parents[1] / "data" / "kv" / "vllm_main.jsonl"

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
HELLO = {"role": "user", "content": "Say hello."}
HELLO_TOKENS = [
    1, 1536, 563, 202, 60, 1298, 475, 270, 1264, 1907, 975, 1006, 899, 17, 2, 202, 1, 433, 85, 202, 54, 462, 729, 79,
    337, 17, 2, 202, 1, 68, 323, 1006, 899, 202,
]  # fmt: skip
"""Its answer to /tokenize with the two messages."""


def read(path: str, body: dict[str, Any]) -> PrefixChain:
    request = read_request({":method": "POST", ":path": path}, json.dumps({"model": MODEL, **body}).encode())
    return READER.read(request.prompt, MODEL, "", request.cache_salt)


@pytest.mark.parametrize(
    ("path", "body", "prompt_tokens"),
    [
        ("/v1/chat/completions", {"messages": [SYSTEM, HELLO], "max_tokens": 6}, 34),
        ("/v1/responses", {"input": "Say hi", "max_output_tokens": 4}, 16),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}, 13),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 1}, 1),
        ("/v1/completions", {"prompt": "Hello world"}, 6),
    ],
)
def test_prompts_have_as_many_tokens_as_it_counted(path: str, body: dict[str, Any], prompt_tokens: int) -> None:
    assert read(path, body).prompt_tokens == prompt_tokens


def test_chats_and_texts_have_the_tokens_that_it_told() -> None:
    assert TINY.template is not None
    assert TINY.encode(TINY.template.render([SYSTEM, HELLO]), add_special_tokens=False) == HELLO_TOKENS
    assert TINY.encode("Hello world", add_special_tokens=True) == [43, 72, 79, 337, 1385, 491]


def events() -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for line in EVENTS.read_text().splitlines():
        row = json.loads(line)
        found.setdefault(row["scenario"], []).extend(decode(bytes.fromhex(row["payload"])).events)
    return found


def test_the_block_that_it_announced_for_a_chat_holds_the_tokens_of_that_chat() -> None:
    [stored] = (each for each in events()["15_chat_text"] if isinstance(each, Stored))
    system = {"role": "system", "content": "You are a helpful assistant that answers briefly."}
    assert TINY.template is not None
    text = TINY.template.render([system, {"role": "user", "content": "What else?"}])
    assert TINY.encode(text, add_special_tokens=False)[: len(stored.tokens)] == list(stored.tokens)


@pytest.mark.parametrize("scenario", ["01_cold_100tok_max1", "05_exact_multiple_96tok_cold", "09_cache_salt"])
def test_an_agent_publishes_the_blocks_that_the_reader_looks_for(scenario: str) -> None:
    [stored] = (each for each in events()[scenario] if isinstance(each, Stored))
    published = BlockTable(MODEL).apply(stored).stored
    body: dict[str, Any] = {"prompt": stored.tokens}
    if scenario == "09_cache_salt":
        body["cache_salt"] = stored.extra_keys[0][0] if stored.extra_keys and stored.extra_keys[0] else "missing"
    assert read("/v1/completions", body).blocks == published != []
