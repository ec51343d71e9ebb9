"""Texts and tokens are those of Hugging Face's `apply_chat_template`, which engines call."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from picker.prompts.chain import index_blocks, scope
from picker.prompts.conversation import conversation
from picker.prompts.reader import PromptReader
from picker.prompts.template import CannotRender, ChatTemplate
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.read import read_request
from picker.requests.templating import declared_tools
from tests import tiny_models
from tests.conversations import TOOLS, Message, chat, in_parts, text, with_tool_calls

transformers = pytest.importorskip("transformers", reason="pip install 'picker[test]' to compare with transformers")

REAL = os.environ.get("PICKER_TOKENIZERS")
"""A folder of model folders, as tests/fetch_tokenizers.sh makes it."""

CASES = 60
REAL_CASES = 400


def conversations(seed: int, count: int = CASES) -> Iterator[tuple[list[Message], list[Message] | None]]:
    """Messages, with tools or without."""
    random = Random(seed)
    for _ in range(count // 4):
        yield chat(random), None
        yield in_parts(random, chat(random)), None
        yield chat(random), declared_tools(TOOLS)
        yield with_tool_calls(random), declared_tools(TOOLS)


def outcome(render: Any) -> str | None:
    """The text, None where these messages are refused: both sides have to refuse the same."""
    try:
        return str(render())
    except Exception as error:
        assert isinstance(error, CannotRender) or not type(error).__module__.startswith("picker")
        return None


def outcome_ids(tokenise: Callable[[], Any]) -> list[int] | None:
    """The tokens, None where the template refuses the messages."""
    try:
        found = tokenise()
    except Exception:
        return None
    return list(found if isinstance(found, list) else found["input_ids"])


def assert_same(
    model: ModelTokenizer, theirs: Any, messages: list[Message], tools: list[Message] | None = None, **options: Any
) -> bool:
    """Whether there was a text to compare."""
    template = model.tool_template if tools else model.template
    assert template is not None
    seen = conversation(messages, wants_parts=template.wants_parts, knows_developer=template.knows_developer)
    ours = outcome(lambda: template.render(seen, tools=tools, **options))
    options = {
        "tools": tools,
        "add_generation_prompt": True,
        "tokenize": False,
        **options,
        **options.pop("variables", {}),
    }
    assert ours == outcome(lambda: theirs.apply_chat_template(seen, **options))
    if ours is None:
        return False
    tokens = theirs(ours, add_special_tokens=False).input_ids
    assert model.encode(ours, add_special_tokens=False) == tokens
    assert joined(model, ours) == tokens
    return True


def joined(model: ModelTokenizer, whole: str) -> list[int]:
    """The tokens of the text's segments, one after the other."""
    encoded = model.encode_all(model.segmenter.split(whole), add_special_tokens=False)
    return [token for each in encoded for token in each]


class TestTinyFamilies:
    """Seven small models in the manner of known families; these run everywhere."""

    @pytest.fixture(params=tiny_models.FAMILIES)
    def pair(self, request: pytest.FixtureRequest) -> tuple[ModelTokenizer, Any]:
        family = tiny_models.FAMILIES[request.param]
        theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_object=family.make(), chat_template=tiny_models.source(request.param), **family.special_tokens
        )
        return tiny_models.load(request.param), theirs

    def test_generated_conversations_give_the_same_tokens(self, pair: tuple[ModelTokenizer, Any]) -> None:
        compared = sum(assert_same(*pair, *case) for case in conversations(1))
        assert compared >= CASES / 2

    def test_without_a_generation_prompt_too(self, pair: tuple[ModelTokenizer, Any]) -> None:
        compared = sum(assert_same(*pair, *case, add_generation_prompt=False) for case in conversations(2))
        assert compared >= CASES / 2

    @pytest.mark.parametrize("ending", ["So", "So ", " So it goes\n", "42. ", "é\t"])
    def test_a_final_message_is_continued_alike(self, pair: tuple[ModelTokenizer, Any], ending: str) -> None:
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": ending}]
        assert assert_same(*pair, messages, add_generation_prompt=False, continue_final_message=True)

    def test_completions_have_the_same_special_tokens(self, pair: tuple[ModelTokenizer, Any]) -> None:
        model, theirs = pair
        random = Random(4)
        for _ in range(CASES):
            prompt = text(random)
            before, behind = model.frame
            assert [*before, *joined(model, prompt), *behind] == theirs(prompt).input_ids

    def test_the_templates_variables_reach_it(self) -> None:
        family = tiny_models.FAMILIES["chatml"]
        theirs = transformers.PreTrainedTokenizerFast(
            tokenizer_object=family.make(), chat_template=tiny_models.source("chatml"), **family.special_tokens
        )
        model = tiny_models.load("chatml")
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "reasoning": "hm"}]
        assert assert_same(model, theirs, messages, variables={"enable_thinking": False})
        assert model.template is not None
        on, off = (model.template.render(messages, variables={"enable_thinking": flag}) for flag in (True, False))
        assert on != off


@pytest.mark.skipif(REAL is None, reason="set PICKER_TOKENIZERS to the folder that tests/fetch_tokenizers.sh fills")
class TestRealFamilies:
    """Tokenizers and templates as published."""

    @pytest.fixture(params=sorted(Path(REAL).iterdir()) if REAL else [], ids=lambda folder: folder.name)
    def pair(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[ModelTokenizer, Any]:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        return ModelTokenizer.load(request.param), transformers.AutoTokenizer.from_pretrained(request.param)

    def test_generated_conversations_give_the_same_tokens(self, pair: tuple[ModelTokenizer, Any]) -> None:
        if pair[0].template is None:
            pytest.skip("this model has no chat template")
        assert sum(assert_same(*pair, *case) for case in conversations(5, REAL_CASES)) >= REAL_CASES / 4

    def test_requests_have_the_chain_of_the_tokens_that_the_template_gives(
        self, pair: tuple[ModelTokenizer, Any]
    ) -> None:
        model, theirs = pair
        if model.template is None:
            pytest.skip("this model has no chat template")
        reader, random, compared = PromptReader({"m": model}), Random(7), 0
        for _ in range(CASES):
            messages = chat(random, turns=random.randint(1, 12))
            body = json.dumps({"model": "m", "messages": messages}).encode()
            request = read_request({":method": "POST", ":path": "/v1/chat/completions"}, body)
            ids = outcome_ids(lambda each=messages: theirs.apply_chat_template(each, add_generation_prompt=True))
            if ids is None:
                continue
            compared += 1
            assert reader.read(request.prompt, "m", "", "").blocks == index_blocks(scope("m"), ids)
        assert compared >= CASES / 4

    def test_completions_have_the_same_special_tokens(self, pair: tuple[ModelTokenizer, Any]) -> None:
        model, theirs = pair
        random = Random(6)
        for _ in range(CASES):
            prompt = text(random)
            before, behind = model.frame
            assert [*before, *joined(model, prompt), *behind] == theirs(prompt).input_ids


def test_dates_are_those_of_the_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}")
    assert template.render([]).isdigit()
