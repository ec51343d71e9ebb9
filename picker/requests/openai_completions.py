"""POST /v1/completions."""

from __future__ import annotations

import re

import msgspec

from picker.requests.body import MOST_VALUES, count, fields, holds_more, opens_with, scalar, size, value
from picker.requests.model import Dialect, InferenceRequest, PendingPrompt, TextPrompt, TokenPrompt

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default and vLLM's."""

MOST_ID_BYTES = 2 << 20
"""Of a list of token ids: 300,000 of six digits. More are known by their beginning."""

_OPENING = re.compile(rb"\s*\[\s*\[?")


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
        model=scalar(completion.model, str),
        prompt=_pending(completion),
        max_tokens=count(completion.max_tokens) or DEFAULT_MAX_TOKENS,
        answers=count(completion.n) or 1,
        stream=scalar(completion.stream, bool) or False,
        cache_salt=scalar(completion.cache_salt, str) or "",
        priority=scalar(completion.priority, int) or 0,
    )


def _pending(completion: Completion) -> PendingPrompt | None:
    # Embeddings win over a prompt, and truncation drops its beginning: in either case the text says nothing.
    cut = scalar(completion.truncate_prompt_tokens, int) is not None
    if not completion.prompt or completion.prompt_embeds or cut:
        return None
    add_special_tokens = scalar(completion.add_special_tokens, bool) is not False
    text = (completion.prompt,) if opens_with(completion.prompt, b'"') else ()
    return PendingPrompt(lambda: first_prompt(completion.prompt, add_special_tokens), size(completion.prompt), text)


def first_prompt(raw: msgspec.Raw, add_special_tokens: bool = True) -> TextPrompt | TokenPrompt | None:
    """A list of prompts is placed by its first: engines run its members side by side, on one worker."""
    string = value(raw, str)
    if string is not None:
        return TextPrompt(string, add_special_tokens) if string else None
    if prompt := _first_ids(raw):
        return prompt
    strings = None if holds_more(raw, MOST_VALUES) else value(raw, list[str])
    return TextPrompt(strings[0], add_special_tokens) if strings else None


def _first_ids(raw: msgspec.Raw) -> TokenPrompt | None:
    """Of a list of ids or of a list of such lists."""
    data = bytes(raw)
    if not (opening := _OPENING.match(data)):
        return None
    start, end = opening.end(), data.find(b"]", opening.end())
    known = end if end - start <= MOST_ID_BYTES else max(start, data.rfind(b",", start, start + MOST_ID_BYTES))
    ids = value(msgspec.Raw(b"[%b]" % data[start:known]), list[int])
    return TokenPrompt(ids, unread=round((end - known) * len(ids) / (known - start))) if ids else None
