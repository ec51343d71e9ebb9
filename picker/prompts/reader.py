"""From a prompt to its prefix chain, by the best means there is: exact tokens, else text, else nothing."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from picker.prompts import chain
from picker.prompts.template import CannotRender
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.model import ChatPrompt, Prompt, TextPrompt, TokenPrompt

_BYTES_PER_TOKEN = 4
"""Of English text and a current vocabulary; only for prompts that nobody tokenises."""


class Rung(enum.StrEnum):
    """How a prefix chain came about; the first is the best."""

    TOKENS = "tokens"
    TEXT = "text"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """A prompt's index blocks. `block_tokens` is what one block stands for; `prompt_tokens` may be an estimate."""

    rung: Rung
    prompt_tokens: int = 0
    blocks: list[int] = field(default_factory=list, repr=False)
    block_tokens: int = chain.INDEX_TOKENS

    @property
    def exact(self) -> bool:
        """Whether the blocks are those that engines announce."""
        return self.rung is Rung.TOKENS


LOAD_ONLY = PrefixChain(Rung.LOAD)


class PromptReader:
    """Knows the models' tokenizers. Thread-safe: nothing changes after construction."""

    def __init__(self, tokenizers: Mapping[str, ModelTokenizer]):
        self._tokenizers = tokenizers

    def is_slow(self, prompt: Prompt | None, model: str) -> bool:
        """Whether `read` would tokenise, which takes about 3 ms for 1,000 tokens and belongs into a thread."""
        return model in self._tokenizers and isinstance(prompt, TextPrompt | ChatPrompt)

    def read(self, prompt: Prompt | None, model: str, adapter: str, salt: str) -> PrefixChain:
        """The chain under the names that the worker caches by. Never raises for what a client sent."""
        start = chain.scope(model, adapter, salt)
        if prompt is None:
            return LOAD_ONLY
        tokens = self._tokens(prompt, model)
        if tokens is None:
            return _text_chain(start, prompt)
        try:
            return PrefixChain(Rung.TOKENS, len(tokens), chain.index_blocks(start, tokens))
        except ValueError:  # ids that are no ids: the engine will refuse them
            return LOAD_ONLY

    def _tokens(self, prompt: Prompt, model: str) -> list[int] | None:
        if isinstance(prompt, TokenPrompt):
            return list(prompt.tokens)
        tokenizer = self._tokenizers.get(model)
        if tokenizer is None:
            return None
        if isinstance(prompt, TextPrompt):
            return tokenizer.encode(prompt.text, add_special_tokens=True)
        if tokenizer.template is None:
            return None
        try:
            text = tokenizer.template.render(prompt.messages, **prompt.variables)
        except CannotRender:
            return None
        # The template writes the special tokens itself, so the engines add none to a chat.
        return tokenizer.encode(text, add_special_tokens=False)


def _text_chain(start: int, prompt: Prompt) -> PrefixChain:
    pieces = _pieces(prompt)
    size = sum(map(len, pieces))
    return PrefixChain(
        Rung.TEXT,
        prompt_tokens=size // _BYTES_PER_TOKEN,
        blocks=chain.text_blocks(start, pieces),
        block_tokens=chain.TEXT_BLOCK_BYTES // _BYTES_PER_TOKEN,
    )


def _pieces(prompt: Prompt) -> list[bytes]:
    if isinstance(prompt, TextPrompt):
        return [prompt.text.encode("utf-8", "surrogatepass")]
    if isinstance(prompt, ChatPrompt):
        # Templates write tools and documents before the messages.
        return [msgspec.json.encode(prompt.variables), *map(msgspec.json.encode, prompt.messages)]
    return [chain.pack(prompt.tokens)]
