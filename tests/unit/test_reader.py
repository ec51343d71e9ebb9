"""From a prompt to its prefix chain."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import picker
from picker.prompts import chain
from picker.prompts.reader import LOAD_ONLY, PromptReader, Rung
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.model import ChatPrompt, TextPrompt, TokenPrompt

MESSAGES = [{"role": "user", "content": "Hello there"}]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def tokenizer() -> ModelTokenizer:
    return ModelTokenizer.load(Path(picker.__file__).parent / "simulation/data/tiny-llama")


@pytest.fixture(scope="module")
def reader(tokenizer: ModelTokenizer) -> PromptReader:
    return PromptReader({"tiny": tokenizer})


LONG = "The quick brown fox jumps over the lazy dog. " * 40


def test_a_text_prompt_is_tokenised_as_engines_do(reader: PromptReader, tokenizer: ModelTokenizer) -> None:
    found = reader.read(TextPrompt(LONG), "tiny", "", "")
    tokens = tokenizer.encode(LONG, add_special_tokens=True)
    assert (found.rung, found.exact, found.prompt_tokens, found.block_tokens) == (Rung.TOKENS, True, len(tokens), 64)
    assert found.blocks == chain.index_blocks(chain.scope("tiny"), tokens) != []


def test_a_chat_is_rendered_with_the_generation_prompt(reader: PromptReader, tokenizer: ModelTokenizer) -> None:
    messages = [{"role": "user", "content": LONG}]
    found = reader.read(ChatPrompt(messages), "tiny", "sql", "salt")
    text = f"<|im_start|>user\n{LONG}<|im_end|>\n<|im_start|>assistant\n"
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert found.blocks == chain.index_blocks(chain.scope("tiny", "sql", "salt"), tokens) != []


def test_token_ids_need_no_tokenizer(reader: PromptReader) -> None:
    found = reader.read(TokenPrompt(range(130)), "unheard-of", "", "")
    assert found.blocks == chain.index_blocks(chain.scope("unheard-of"), range(130))
    assert (found.rung, found.prompt_tokens) == (Rung.TOKENS, 130)


@pytest.mark.parametrize("tokens", [[-1], [2**32], [2**80]])
def test_ids_that_are_none_are_placed_by_load(reader: PromptReader, tokens: list[int]) -> None:
    assert reader.read(TokenPrompt(tokens), "tiny", "", "") == LOAD_ONLY


@pytest.mark.parametrize("prompt", [TextPrompt(LONG), ChatPrompt([{"role": "user", "content": LONG}])])
def test_without_a_tokenizer_the_text_is_hashed(reader: PromptReader, prompt: TextPrompt | ChatPrompt) -> None:
    found = reader.read(prompt, "other", "", "")
    assert (found.rung, found.exact, found.block_tokens) == (Rung.TEXT, False, 64)
    assert len(found.blocks) == len(LONG) // 256
    assert found.prompt_tokens == pytest.approx(len(LONG) / 4, abs=15)


def test_turns_of_one_chat_share_a_text_chain(reader: PromptReader) -> None:
    messages = [{"role": "user", "content": LONG}]
    more = [*messages, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": LONG}]
    one, other = (reader.read(ChatPrompt(turns), "other", "", "").blocks for turns in (messages, more))
    assert other[: len(one)] == one


@pytest.mark.parametrize(
    ("messages", "variables"),
    [
        (MESSAGES, {"messages": []}),
        (MESSAGES, {"self": 1}),
        (MESSAGES, {"big": 10**40}),
        ([{}], {}),
        ([{"role": 1, "content": None}], {}),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], {}),
        ([{"role": "user", "content": [7]}], {"tools": [[[]]]}),
    ],
)
def test_a_chat_that_a_template_cannot_render_is_read_as_text(
    reader: PromptReader, messages: list[dict[str, Any]], variables: dict[str, Any]
) -> None:
    assert reader.read(ChatPrompt(messages, variables=variables), "tiny", "", "").rung in (Rung.TEXT, Rung.TOKENS)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "name"]), json_values)), st.data())
def test_reading_a_chat_never_raises(messages: list[dict[str, Any]], data: st.DataObject) -> None:
    tokenizer = ModelTokenizer.load(Path(picker.__file__).parent / "simulation/data/tiny-llama")
    names = st.sampled_from(["self", "messages", "tools", "bos_token", "add_generation_prompt", "x"])
    variables = data.draw(st.dictionaries(names, json_values, max_size=3))
    for model in ("tiny", "other"):
        PromptReader({"tiny": tokenizer}).read(ChatPrompt(messages, variables=variables), model, "", "")


def test_only_what_must_be_tokenised_is_slow(reader: PromptReader) -> None:
    assert reader.is_slow(TextPrompt(""), "tiny")
    assert not reader.is_slow(TextPrompt(""), "other")
    assert not reader.is_slow(TokenPrompt([1]), "tiny")
    assert not reader.is_slow(None, "tiny")
