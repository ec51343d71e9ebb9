"""The engines' own APIs: vLLM's token-in generate, SGLang's generate, and calls that compute no prompt."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from picker.requests.body import count, fields, opens_with, scalar, size, value
from picker.requests.model import Dialect, InferenceRequest, PendingPrompt, TextPrompt, TokenPrompt
from picker.requests.openai_completions import first_prompt


class Generate(msgspec.Struct):
    """The fields that bear on placement: `token_ids` is vLLM's, `input_ids` and `text` are SGLang's."""

    model: msgspec.Raw = msgspec.Raw()
    token_ids: msgspec.Raw = msgspec.Raw()
    input_ids: msgspec.Raw = msgspec.Raw()
    text: msgspec.Raw = msgspec.Raw()
    features: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    priority: msgspec.Raw = msgspec.Raw()


class Sampling(msgspec.Struct):
    """`max_tokens` is vLLM's, `max_new_tokens` SGLang's."""

    max_tokens: msgspec.Raw = msgspec.Raw()
    max_new_tokens: msgspec.Raw = msgspec.Raw()
    n: msgspec.Raw = msgspec.Raw()


class Placeholder(msgspec.Struct):
    """Where a medium's placeholder tokens begin."""

    offset: int


class Features(msgspec.Struct):
    """Images, audio and video of a prompt in vLLM's token-in API: by kind, identifiers and places in the same order."""

    mm_hashes: dict[str, list[str]] = {}
    mm_placeholders: dict[str, list[Placeholder]] = {}


class Named(msgspec.Struct):
    """A request of which only the model matters."""

    model: msgspec.Raw = msgspec.Raw()
    stream: msgspec.Raw = msgspec.Raw()


def read_generate(body: bytes) -> InferenceRequest:
    """Raises BadRequest."""
    generate = fields(Generate, body)
    sampling = value(generate.sampling_params, Sampling) or Sampling()
    prompt = generate.token_ids or generate.input_ids or generate.text
    return InferenceRequest(
        Dialect.ENGINE,
        model=scalar(generate.model, str),
        prompt=PendingPrompt(lambda: _prompt(prompt, generate.features), size(prompt, generate.features))
        if prompt
        else None,
        max_tokens=count(sampling.max_tokens) or count(sampling.max_new_tokens),
        answers=count(sampling.n) or 1,
        stream=scalar(generate.stream, bool) or False,
        cache_salt=scalar(generate.cache_salt, str) or "",
        priority=scalar(generate.priority, int) or 0,
    )


def _prompt(prompt: msgspec.Raw, features: msgspec.Raw) -> TextPrompt | TokenPrompt | None:
    """Without the identifiers of media it is not known what an engine caches for their tokens."""
    found = first_prompt(prompt)
    if not opens_with(features, b"{"):
        return found
    media = _media(value(features, Features))
    return replace(found, media=media) if isinstance(found, TokenPrompt) and media is not None else None


def _media(features: Features | None) -> list[tuple[int, str]] | None:
    """Where each begins and its identifier, None where that is not told."""
    if features is None or features.mm_hashes.keys() != features.mm_placeholders.keys():
        return None
    media: list[tuple[int, str]] = []
    for kind, identifiers in features.mm_hashes.items():
        places = features.mm_placeholders[kind]
        if len(places) != len(identifiers):
            return None
        media += ((place.offset, identifier) for place, identifier in zip(places, identifiers, strict=True))
    return sorted(media)


def read_named(body: bytes) -> InferenceRequest:
    """Embeddings, scores, ranks: work that leaves nothing in a prefix cache. Raises BadRequest."""
    return msgspec.structs.replace(read_control(body), unread_bytes=len(body))


def read_control(body: bytes) -> InferenceRequest:
    """Tokenize and the like: nothing is computed on a GPU. Raises BadRequest."""
    named = fields(Named, body)
    return InferenceRequest(
        Dialect.OPENAI, model=scalar(named.model, str), max_tokens=0, stream=scalar(named.stream, bool) or False
    )
