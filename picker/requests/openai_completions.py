"""POST /v1/completions."""

from __future__ import annotations

import msgspec

from picker.requests.body import count, fields, text, value
from picker.requests.model import Dialect, InferenceRequest, PendingPrompt, TextPrompt, TokenPrompt

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default and vLLM's."""


class Completion(msgspec.Struct):
    """The fields that bear on placement."""

    model: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    prompt_embeds: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()
    add_special_tokens: msgspec.Raw = msgspec.Raw()
    truncate_prompt_tokens: msgspec.Raw = msgspec.Raw()


def read(body: bytes) -> InferenceRequest:
    """Raises BadRequest."""
    completion = fields(Completion, body)
    return InferenceRequest(
        Dialect.OPENAI,
        model=value(completion.model, str),
        prompt=_pending(completion),
        max_tokens=count(completion.max_tokens) or DEFAULT_MAX_TOKENS,
        answers=count(completion.n) or 1,
        stream=value(completion.stream, bool) or False,
        cache_salt=text(completion.cache_salt),
        priority=value(completion.priority, int) or 0,
    )


def _pending(completion: Completion) -> PendingPrompt | None:
    # Embeddings win over a prompt, and truncation drops its beginning: in either case the text says nothing.
    cut = value(completion.truncate_prompt_tokens, int) is not None
    if not completion.prompt or completion.prompt_embeds or cut:
        return None
    add_special_tokens = value(completion.add_special_tokens, bool) is not False
    return PendingPrompt(lambda: first_prompt(completion.prompt, add_special_tokens), _size(completion.prompt))


def first_prompt(raw: msgspec.Raw, add_special_tokens: bool = True) -> TextPrompt | TokenPrompt | None:
    """A list of prompts is placed by its first: engines run its members side by side, on one worker."""
    string = value(raw, str)
    if string is not None:
        return TextPrompt(string, add_special_tokens) if string else None
    tokens = value(raw, list[int])
    if tokens:
        return TokenPrompt(tokens)
    strings = value(raw, list[str])
    if strings:
        return TextPrompt(strings[0], add_special_tokens)
    lists = value(raw, list[list[int]])
    return TokenPrompt(lists[0]) if lists else None


def _size(raw: msgspec.Raw) -> int:
    return memoryview(raw).nbytes
