"""Reads a request's body. Whatever an engine might still answer is not ours to refuse: it is placed by load.

Only a body that is no JSON object, on a path that we know to take one, is refused: no engine accepts it either, and
without a model it is not known who may serve it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from picker.requests.model import ChatPrompt, Dialect, InferenceRequest, Prompt, TextPrompt, TokenPrompt

_CHAT = "/chat/completions"
_COMPLETIONS = "/completions"
_JSON_PATHS = (_CHAT, _COMPLETIONS, "/embeddings", "/responses", "/messages", "/score", "/rerank", "/tokenize")
_MOST_TOKENS = 1 << 32


class BadRequest(ValueError):
    """The body cannot be a request of this API. The message is fixed text: it never quotes the body."""


class _Body(msgspec.Struct):
    """The fields that bear on placement. Raw ones are decoded only if the path says that they hold a prompt."""

    model: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_completion_tokens: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    documents: msgspec.Raw = msgspec.Raw()
    chat_template: msgspec.Raw = msgspec.Raw()
    chat_template_kwargs: msgspec.Raw = msgspec.Raw()
    add_generation_prompt: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Body).decode


def read_request(path: str, body: bytes) -> InferenceRequest:
    """`path` may carry a query and a gateway's prefix. Raises BadRequest."""
    path = path.partition("?")[0].rstrip("/")
    if not path.endswith(_JSON_PATHS):
        return InferenceRequest(Dialect.UNKNOWN)
    if not body:
        return InferenceRequest(Dialect.OPENAI)
    try:
        fields = _decode(body)
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRequest("The request body is not a JSON object.") from None
    return InferenceRequest(
        dialect=Dialect.OPENAI,
        model=_value(fields.model, str),
        prompt=_prompt(path, fields),
        max_tokens=_tokens(fields.max_completion_tokens) or _tokens(fields.max_tokens),
        stream=_value(fields.stream, bool) or False,
        cache_salt=_value(fields.cache_salt, str) or "",
    )


def _prompt(path: str, fields: _Body) -> Prompt | None:
    if path.endswith(_CHAT):
        return _chat(fields)
    return _completion(fields.prompt) if path.endswith(_COMPLETIONS) else None


def _chat(fields: _Body) -> ChatPrompt | None:
    messages = _value(fields.messages, list[dict[str, Any]])
    # A template that comes with the request renders text that we do not know.
    if not messages or _value(fields.chat_template, str):
        return None
    variables = _value(fields.chat_template_kwargs, dict[str, Any]) or {}
    for name in ("tools", "documents"):
        if value := _value(getattr(fields, name), list[Any]):
            variables[name] = value
    generate = _value(fields.add_generation_prompt, bool)
    return ChatPrompt(messages, variables if generate is None else variables | {"add_generation_prompt": generate})


def _completion(raw: msgspec.Raw) -> TextPrompt | TokenPrompt | None:
    """A list of prompts is placed by its first: engines run its members side by side, on one worker."""
    text = _value(raw, str)
    if text is not None:
        return TextPrompt(text)
    tokens = _value(raw, list[int])
    if tokens:
        return TokenPrompt(tokens)
    texts = _value(raw, list[str])
    if texts:
        return TextPrompt(texts[0])
    lists = _value(raw, list[list[int]])
    return TokenPrompt(lists[0]) if lists else None


def _tokens(raw: msgspec.Raw) -> int | None:
    value = _value(raw, int)
    return value if value is not None and 0 < value < _MOST_TOKENS else None


def _value(raw: msgspec.Raw, type_: Any) -> Any:
    """The value if it is there and of this type, else None: the engine will say what is wrong with it."""
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
