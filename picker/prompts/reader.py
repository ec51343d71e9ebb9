"""From a prompt to its prefix chain, by the best means there is: exact tokens, else text, else nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from picker.prompts import chain
from picker.prompts.conversation import MEDIA, conversation, joined_system
from picker.prompts.incremental import BYTES_PER_TOKEN, MOST_SEGMENT_CHARS, IncrementalReader
from picker.prompts.memo import MemoStatistics
from picker.prompts.prefix import LOAD_ONLY, PrefixChain, Rung
from picker.prompts.template import CannotRender
from picker.prompts.tokenizer import ModelTokenizer
from picker.requests.model import ChatPrompt, PendingPrompt, Prompt, TextPrompt, TokenPrompt

__all__ = ["LOAD_ONLY", "PrefixChain", "PromptReader", "Rung"]

QUICK_BYTES = 64 << 10
"""Of JSON: a prompt up to this size that nobody tokenises takes about 0.3 ms to decode."""

QUICK_TEXT_BYTES = 1 << 20
"""Of JSON that is hashed as it stands: up to this size it takes about 0.4 ms."""

STATES_BYTES = 64 << 20
TOKENS_BYTES = 64 << 20
"""About 16 million tokens; the states of as many take 2 MB, and 400 bytes for each turn."""

MOST_BYTES = 16 << 20
"""Of a prompt's JSON. What exceeds it is all images, or more than models take."""

MOST_CHARS = 4 << 20
"""About a million tokens, more than models take, and two seconds of a core."""


def never() -> bool:
    """For those who have the time."""
    return False


class PromptReader:
    """Knows the models' tokenizers, and remembers what it has read. Thread-safe."""

    def __init__(
        self,
        tokenizers: Mapping[str, ModelTokenizer],
        states_bytes: int = STATES_BYTES,
        tokens_bytes: int = TOKENS_BYTES,
        most_chars: int = MOST_CHARS,
        most_segment_chars: int = MOST_SEGMENT_CHARS,
        most_bytes: int = MOST_BYTES,
    ):
        """The memos' bounds may be 0: then nothing is remembered.

        Prompts whose JSON exceeds `most_bytes` are not read. Texts above `most_chars` are not tokenised, and of a piece
        that cannot be cut so many as `most_segment_chars` are.
        """
        self._tokenizers = dict(tokenizers)
        self._most_bytes = most_bytes
        self._most_chars = most_chars
        self._incremental = IncrementalReader(states_bytes, tokens_bytes, most_segment_chars)

    def use(self, model: str, tokenizer: ModelTokenizer | None) -> None:
        """From now on this model's prompts are read with this tokenizer, or as text."""
        if tokenizer is None:
            self._tokenizers.pop(model, None)
        else:
            self._tokenizers[model] = tokenizer

    def is_slow(self, prompt: PendingPrompt | Prompt | None, model: str) -> bool:
        """Whether `read` belongs into a thread: it tokenises (2 ms for 1,000 tokens) or has much to decode."""
        if isinstance(prompt, PendingPrompt):
            return model in self._tokenizers or prompt.size > (QUICK_TEXT_BYTES if prompt.text else QUICK_BYTES)
        return model in self._tokenizers and isinstance(prompt, TextPrompt | ChatPrompt)

    def read(
        self,
        prompt: PendingPrompt | Prompt | None,
        model: str,
        adapter: str,
        salt: str,
        should_stop: Callable[[], bool] = never,
    ) -> PrefixChain:
        """The chain under the names that the worker caches by. Never raises for what a client sent.

        Once `should_stop` says so, what is known by then has to do.
        """
        start = chain.scope(model, adapter, salt)
        tokenizer = self._tokenizers.get(model)
        text: Sequence[msgspec.Raw] = ()
        if isinstance(prompt, PendingPrompt):
            if prompt.size > self._most_bytes:
                return LOAD_ONLY
            text = prompt.text
            if text and tokenizer is None:
                return _text_chain(start, text, self._most_chars)
            prompt = prompt.read()
        if prompt is None:
            return LOAD_ONLY
        if isinstance(prompt, TokenPrompt):
            return _token_chain(start, prompt)
        exact = self._exact(prompt, start, tokenizer, should_stop) if tokenizer else None
        return exact or _text_chain(start, text or _pieces(prompt), self._most_chars)

    def statistics(self) -> tuple[MemoStatistics, MemoStatistics]:
        """Of the memo of chain states and of the memo of tokens."""
        return self._incremental.statistics()

    def _exact(
        self, prompt: TextPrompt | ChatPrompt, start: int, tokenizer: ModelTokenizer, should_stop: Callable[[], bool]
    ) -> PrefixChain | None:
        try:
            text = prompt.text if isinstance(prompt, TextPrompt) else _render(prompt, tokenizer)
            if len(text) > self._most_chars:
                return None
            known, is_all = _before_media(text, tokenizer)
            found = self._incremental.read(
                known, start, tokenizer, should_stop, add_special_tokens=prompt.add_special_tokens
            )
        except (CannotRender, UnicodeEncodeError):
            return None
        if is_all:
            return found
        return PrefixChain(Rung.PART, found.prompt_tokens + (len(text) - len(known)) // BYTES_PER_TOKEN, found.blocks)


def _render(prompt: ChatPrompt, tokenizer: ModelTokenizer) -> str:
    template = tokenizer.tool_template if prompt.tools else tokenizer.template
    if template is None:
        raise CannotRender("the model has no chat template")
    chat: Sequence[Mapping[str, Any]] = prompt.messages
    if prompt.joins_system and not template.takes_late_system:
        chat = joined_system(chat)
    messages = conversation(chat, wants_parts=template.wants_parts, knows_developer=template.knows_developer)
    return template.render(
        messages,
        tools=prompt.tools,
        documents=prompt.documents,
        variables=prompt.variables,
        add_generation_prompt=prompt.add_generation_prompt,
        continue_final_message=prompt.continue_final_message,
    )


def _before_media(text: str, tokenizer: ModelTokenizer) -> tuple[str, bool]:
    """The text as far as it is known, up to a place where its tokens end too, and whether that is all of it."""
    place = text.find(MEDIA)
    return (text, True) if place < 0 else (tokenizer.segmenter.before_last_cut(text[:place]), False)


def _token_chain(start: int, prompt: TokenPrompt) -> PrefixChain:
    try:
        blocks = chain.index_blocks(start, prompt.tokens, prompt.media)
    except ValueError:  # ids that are no ids: the engine will refuse them
        return LOAD_ONLY
    rung = Rung.PART if prompt.unread else Rung.TOKENS
    return PrefixChain(rung, len(prompt.tokens) + prompt.unread, blocks)


def _text_chain(start: int, pieces: Iterable[bytes | msgspec.Raw], most_bytes: int) -> PrefixChain:
    """Of the text's first `most_bytes`."""
    text = b"".join(pieces)
    if not text:
        return LOAD_ONLY
    return PrefixChain(
        Rung.TEXT,
        prompt_tokens=len(text) // BYTES_PER_TOKEN,
        blocks=chain.text_blocks(start, text[:most_bytes]),
        block_tokens=chain.TEXT_BLOCK_BYTES // BYTES_PER_TOKEN,
    )


def _pieces(prompt: TextPrompt | ChatPrompt) -> list[bytes]:
    """As JSON, where there is none that a client has sent; nothing of what JSON has no words for."""
    if isinstance(prompt, TextPrompt):
        return [prompt.text.encode("utf-8", "surrogatepass")]
    # Templates write tools and documents before the messages.
    beginning = (prompt.tools, prompt.documents, prompt.variables)
    try:
        return [*map(msgspec.json.encode, beginning), *map(msgspec.json.encode, prompt.messages)]
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return []
