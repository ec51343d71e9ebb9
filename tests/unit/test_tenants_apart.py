"""What one tenant can learn of another's prompts, and take from it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.view import View
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation.words import DEMO_TOKENIZER
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import fleet

PROMPT = "Our plans for the next quarter are as follows. " * 40
HEADERS = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}


@pytest.fixture
def view() -> View:
    return fleet(3)


@pytest_asyncio.fixture(params=["tokens", "text"])
async def picker(request: pytest.FixtureRequest, view: View) -> AsyncIterator[Picker]:
    known = {"llama": ModelTokenizer.load(DEMO_TOKENIZER)} if request.param == "tokens" else {}
    picker = Picker(Config(reveal_decision=True), view, PromptReader(known), Metrics(), lambda: False)
    yield picker
    picker.close()


async def told(picker: Picker, **body: Any) -> Picked:
    """The answer to a completion, after which its booking is released."""
    wanted = Pick(HEADERS, json.dumps({"model": "llama", "prompt": PROMPT, "max_tokens": 1, **body}).encode())
    answer = await picker.pick(wanted)
    assert isinstance(answer, Picked)
    picker.release(answer.placement)
    return answer


def hit(answer: Picked) -> int:
    parts = dict(part.split("=") for part in answer.reason.split())
    return int(parts["hit"].partition("/")[0])


async def test_a_salt_hides_from_everybody_else_that_a_prompt_was_sent(picker: Picker) -> None:
    assert hit(await told(picker, cache_salt="alice")) == 0
    assert hit(await told(picker, cache_salt="alice")) > 0
    for salt in ("bob", "alice ", "Alice", "", "alic"):
        assert hit(await told(picker, cache_salt=salt)) == 0, salt


async def test_without_a_salt_a_prompt_is_shared_and_a_salted_one_is_not_taken_for_it(picker: Picker) -> None:
    await told(picker)
    assert hit(await told(picker)) > 0
    assert hit(await told(picker, cache_salt="bob")) == 0


async def test_what_is_cached_is_told_to_nobody_unless_the_operator_says_so(view: View) -> None:
    assert not Config().reveal_decision and not Config().reveal_endpoint
    picker = Picker(Config(), view, PromptReader({}), Metrics(), lambda: False)
    assert [(await told(picker)).reason for _ in range(2)] == ["", ""]
    picker.close()
