"""From a prompt to its prefix chain."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import picker
from picker.agent.blocks import BlockTable
from picker.agent.events import Stored
from picker.prompts import chain
from picker.prompts.reader import LOAD_ONLY, PromptReader, Rung
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.model import ChatPrompt, PendingPrompt, TextPrompt, TokenPrompt
from picker.requests.read import read_request

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


TINY = ModelTokenizer.load(Path(picker.__file__).parent / "simulation/data/tiny-llama")
READER = PromptReader({"tiny": TINY})


LONG = "The quick brown fox jumps over the lazy dog. " * 40


def test_a_text_prompt_is_tokenised_as_engines_do() -> None:
    found = READER.read(TextPrompt(LONG), "tiny", "", "")
    tokens = TINY.encode(LONG, add_special_tokens=True)
    assert (found.rung, found.exact, found.prompt_tokens, found.block_tokens) == (Rung.TOKENS, True, len(tokens), 64)
    assert found.blocks == chain.index_blocks(chain.scope("tiny"), tokens) != []


def test_a_chat_is_rendered_with_the_generation_prompt() -> None:
    messages = [{"role": "user", "content": LONG}]
    found = READER.read(ChatPrompt(messages), "tiny", "sql", "salt")
    text = f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
    tokens = TINY.encode(text, add_special_tokens=False)
    assert found.blocks == chain.index_blocks(chain.scope("tiny", "sql", "salt"), tokens) != []


def test_token_ids_need_no_tokenizer() -> None:
    found = READER.read(TokenPrompt(range(130)), "unheard-of", "", "")
    assert found.blocks == chain.index_blocks(chain.scope("unheard-of"), range(130))
    assert (found.rung, found.prompt_tokens) == (Rung.TOKENS, 130)


def test_token_ids_with_images_have_the_chain_that_agents_publish() -> None:
    tokens, media = list(range(256)), [(70, "cat"), (130, "dog"), (1_000_000, "nowhere"), (-5, "before")]
    event = Stored([1, 2], None, tokens, 128, extra_keys=[[["cat", 70]], [["cat", -58], ["dog", 2]]])
    found = READER.read(TokenPrompt(tokens, media=media), "m", "", "")
    assert found.blocks == BlockTable("m").apply(event).stored
    assert found.blocks != READER.read(TokenPrompt(tokens), "m", "", "").blocks


@pytest.mark.parametrize("tokens", [[-1], [2**32], [2**80]])
def test_ids_that_are_none_are_placed_by_load(tokens: list[int]) -> None:
    assert READER.read(TokenPrompt(tokens), "tiny", "", "") == LOAD_ONLY


@pytest.mark.parametrize("prompt", [TextPrompt(LONG), ChatPrompt([{"role": "user", "content": LONG}])])
def test_without_a_tokenizer_the_text_is_hashed(prompt: TextPrompt | ChatPrompt) -> None:
    found = READER.read(prompt, "other", "", "")
    assert (found.rung, found.exact, found.block_tokens) == (Rung.TEXT, False, 128)
    assert len(found.blocks) == len(LONG) // 512
    assert found.prompt_tokens == pytest.approx(len(LONG) / 4, abs=15)


CHATS = ("/v1/chat/completions", "/v1/messages")


def posted(path: str, **body: object) -> PendingPrompt | None:
    return read_request({":method": "POST", ":path": path}, msgspec.json.encode({"model": "other", **body})).prompt


@pytest.mark.parametrize("path", CHATS)
def test_turns_of_one_chat_share_the_chain_of_their_json(path: str) -> None:
    messages = [{"role": "user", "content": LONG}]
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": LONG}]
    prompts = [posted(path, messages=turns, max_tokens=len(turns)) for turns in (messages, more)]
    one, other = (READER.read(prompt, "other", "", "") for prompt in prompts)
    assert one.rung is Rung.TEXT
    assert len(one.blocks) == len(LONG) // 512
    assert other.blocks[: len(one.blocks)] == one.blocks
    assert len(other.blocks) > len(one.blocks)


@pytest.mark.parametrize("path", CHATS)
def test_tools_are_part_of_what_is_hashed_and_come_first(path: str) -> None:
    messages = [{"role": "user", "content": LONG}]
    tools = [{"name": "f", "type": "function", "function": {"name": "f"}}]
    one, other = (
        READER.read(posted(path, messages=messages, **more), "other", "", "") for more in ({}, {"tools": tools})
    )
    assert not set(one.blocks) & set(other.blocks)


def test_the_billing_note_that_changes_each_time_is_left_out_of_the_text() -> None:
    notes = [{"type": "text", "text": f"x-anthropic-billing-header: cch={number}"} for number in range(2)]
    asked = [
        posted(
            "/v1/messages", system=[note, {"type": "text", "text": LONG}], messages=[{"role": "user", "content": "?"}]
        )
        for note in notes
    ]
    one, other = (READER.read(prompt, "other", "", "").blocks for prompt in asked)
    assert one == other
    assert len(one) >= len(LONG) // 512


def test_turns_of_one_chat_share_a_text_chain() -> None:
    messages = [{"role": "user", "content": LONG}]
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": LONG}]
    one, other = (READER.read(ChatPrompt(turns), "other", "", "").blocks for turns in (messages, more))
    assert other[: len(one)] == one


@pytest.mark.parametrize("message", [{}, {"role": 1, "content": None}])
def test_a_chat_that_the_template_cannot_render_is_read_as_text(message: dict[str, Any]) -> None:
    assert READER.read(ChatPrompt([message]), "tiny", "", "").rung is Rung.TEXT


names = st.sampled_from(["self", "messages", "tools", "bos_token", "add_generation_prompt", "x"])


@given(
    st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), json_values, max_size=3), max_size=3),
    st.dictionaries(names, json_values, max_size=2),
    st.sampled_from(["tiny", "other"]),
)
def test_reading_a_chat_never_raises(messages: list[dict[str, Any]], variables: dict[str, Any], model: str) -> None:
    READER.read(ChatPrompt(messages, variables=variables), model, "", "")


def test_only_what_must_be_tokenised_is_slow() -> None:
    assert READER.is_slow(TextPrompt(""), "tiny")
    assert not READER.is_slow(TextPrompt(""), "other")
    assert not READER.is_slow(TokenPrompt([1]), "tiny")
    assert not READER.is_slow(None, "tiny")
