"""Reads a request. Whatever an engine might still answer is not ours to refuse: it is placed by load.

Only a body that is no JSON object, on a path that we know to take one, is refused: no engine accepts it either, and
without a model it is not known who may serve it.

    model absent, null or no string     any worker serves it (engines have a default), placed by prompt and load
    model empty, odd or unknown         the fleet says who serves it; no such worker is a 404
    prompt absent or not understood     placed by load
    a list of prompts                   placed by its first
    compressed, cut off, no POST        placed by load, unless it unpacks
    unknown path, gRPC                  placed by load
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from picker.requests import anthropic, engine, openai_chat, openai_completions, openai_responses
from picker.requests.compression import unpack
from picker.requests.errors import BadRequest
from picker.requests.headers import paths, read_terms
from picker.requests.model import Dialect, InferenceRequest
from picker.requests.multipart import read_model

__all__ = ["APIS", "BadRequest", "dialect_of", "read_request"]

Api = tuple[Dialect, Callable[[bytes], InferenceRequest]]

APIS: dict[str, Api] = {
    "chat/completions": (Dialect.OPENAI, openai_chat.read),
    "completions": (Dialect.OPENAI, openai_completions.read),
    "responses": (Dialect.OPENAI, openai_responses.read),
    "messages": (Dialect.ANTHROPIC, anthropic.read),
    "messages/count_tokens": (Dialect.ANTHROPIC, anthropic.read_count),
    "messages/render": (Dialect.ANTHROPIC, anthropic.read_count),
    "inference/v1/generate": (Dialect.ENGINE, engine.read_generate),
    "generate": (Dialect.ENGINE, engine.read_generate),
    **dict.fromkeys(
        (
            "chat/completions/batch", "embeddings", "score", "rerank", "pooling", "classify", "images/generations",
            "audio/speech",
        ),
        (Dialect.OPENAI, engine.read_named),
    ),
    **dict.fromkeys(
        ("chat/completions/render", "completions/render", "responses/render", "tokenize", "detokenize"),
        (Dialect.OPENAI, engine.read_control),
    ),
}  # fmt: skip
"""By the last segments of the path, whatever a gateway has put before them."""

_FORMS = ("audio/transcriptions", "audio/translations")
_MOST_SEGMENTS = 3


def read_request(headers: Mapping[str, str], body: bytes, is_whole: bool = True) -> InferenceRequest:
    """`headers` have lower-case names and include Envoy's `:method` and `:path`. Raises BadRequest."""
    request = _read(headers, body) if is_whole and headers.get(":method") == "POST" else _unread(headers, body)
    terms = read_terms(headers)
    return msgspec.structs.replace(request, terms=terms, model=terms.model or request.model)


def dialect_of(headers: Mapping[str, str]) -> Dialect:
    """Whose shape an error has to have."""
    return _unread(headers, b"").dialect


def _read(headers: Mapping[str, str], body: bytes) -> InferenceRequest:
    for path in paths(headers):
        tail = _tail(path, _FORMS)
        if tail:
            return InferenceRequest(Dialect.OPENAI, model=read_model(body), unread_bytes=len(body))
        if (tail := _tail(path, APIS)) and body:
            return _json(APIS[tail], headers.get("content-encoding", ""), body)
    return _unread(headers, body)


def _json(api: Api, encoding: str, body: bytes) -> InferenceRequest:
    dialect, read = api
    plain = unpack(encoding, body) if encoding else body
    if plain is None:
        return InferenceRequest(dialect, unread_bytes=len(body))
    request = read(plain)
    is_known = request.prompt is not None or request.max_tokens == 0
    return request if is_known else msgspec.structs.replace(request, unread_bytes=len(plain))


def _unread(headers: Mapping[str, str], body: bytes) -> InferenceRequest:
    tails = (_tail(path, APIS) for path in paths(headers))
    dialect = next((APIS[tail][0] for tail in tails if tail), Dialect.UNKNOWN)
    return InferenceRequest(dialect, unread_bytes=len(body))


def _tail(path: str, known: Mapping[str, Api] | tuple[str, ...]) -> str:
    """The most of the path's last segments that are known, "" if none are."""
    segments = path.partition("?")[0].partition("#")[0].strip("/").split("/")
    for length in range(min(_MOST_SEGMENTS, len(segments)), 0, -1):
        if (tail := "/".join(segments[-length:])) in known:
            return tail
    return ""
