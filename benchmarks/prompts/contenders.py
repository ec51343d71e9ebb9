"""Ways from a body to a prefix chain. The first is the plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from benchmarks.prompts.conversations import Conversation
from picker.prompts import chain
from picker.prompts.prefix import PrefixChain
from picker.prompts.reader import PromptReader
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.read import read_request

MODEL = "m"
HEADERS = {":method": "POST", ":path": "/v1/chat/completions"}

Read = Callable[[bytes], list[int]]


@dataclass(frozen=True)
class Contender:
    """`make` gives the function that is measured; `bodies` what it is called with, after `warm` has been read once."""

    label: str
    make: Callable[[ModelTokenizer], Read]
    bodies: Callable[[Conversation, int], bytes]
    is_warm: bool = False


def plain(tokenizer: ModelTokenizer) -> Read:
    """Decode all, render, tokenise the whole text, hash the whole chain: what there is to do without a memory."""
    start = chain.scope(MODEL)

    def read(body: bytes) -> list[int]:
        request: dict[str, Any] = msgspec.json.decode(body)
        assert tokenizer.template is not None
        text = tokenizer.template.render(request["messages"])
        return chain.index_blocks(start, tokenizer.encode(text, add_special_tokens=False))

    return read


def picker(tokenizer: ModelTokenizer) -> Read:
    """What a pick does."""
    reader = PromptReader({MODEL: tokenizer})

    def read(body: bytes) -> list[int]:
        found: PrefixChain = reader.read(read_request(HEADERS, body).prompt, MODEL, "", "")
        return found.blocks

    return read


def _unseen(conversation: Conversation, number: int) -> bytes:
    return conversation.other(number + 1)


def _one_turn_more(conversation: Conversation, number: int) -> bytes:
    return conversation.body()


CONTENDERS = (
    Contender("whole text, no memory", plain, _unseen),
    Contender("picker, unseen", picker, _unseen),
    Contender("picker, last turn new", picker, _one_turn_more, is_warm=True),
)
