"""What an answer says that it took: the `usage` near its end, whole or as a stream of events, whichever the API.

    OpenAI chat, completions   prompt_tokens, prompt_tokens_details.cached_tokens, completion_tokens
    OpenAI responses           input_tokens, input_tokens_details.cached_tokens, output_tokens
    Anthropic messages         input_tokens, cache_read_input_tokens, output_tokens

Only the answer's last bytes are looked at, and of several usages the last one counts: streams repeat it, and it grows.
A piece of text that quotes one has its quotation marks escaped, so it is never taken for one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

TAIL_BYTES = 4096
"""Of an answer. Behind its usage vLLM 0.32 writes a dozen short fields, and a stream `[DONE]`."""

_KEY = re.compile(r'[{,]\s*+"usage"\s*+:\s*+(?!null)')
_MOST_TOKENS = 1 << 32
_decode = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `cached` is None where the engine does not tell."""

    prompt: int
    output: int
    cached: int | None = None


class Unreadable(ValueError):
    """There is a usage, and it is none."""


def read_usage(tail: bytes) -> Usage | None:
    """The last usage in an answer's last bytes, None where there is none. Raises Unreadable."""
    text = tail.decode("utf-8", "replace")
    found: Any = None
    for key in _KEY.finditer(text):
        found = key
    if found is None:
        return None
    try:
        value, _ = _decode(text, found.end())
    except (ValueError, RecursionError):
        raise Unreadable("a usage is no JSON") from None
    return _usage(value)


def _usage(value: Any) -> Usage:
    if not isinstance(value, dict):
        raise Unreadable("a usage is no object")
    prompt = _count(value, "prompt_tokens", "input_tokens")
    output = _count(value, "completion_tokens", "output_tokens")
    if prompt is None:
        raise Unreadable("a usage does not tell the prompt's tokens")
    cached = _count(value, "cache_read_input_tokens")
    details = next((value[name] for name in ("prompt_tokens_details", "input_tokens_details") if name in value), None)
    if details is not None:
        if not isinstance(details, dict):
            raise Unreadable("a usage has details that are none")
        cached = _count(details, "cached_tokens")
    return Usage(prompt, output or 0, cached)


def _count(value: dict[str, Any], *names: str) -> int | None:
    """Raises Unreadable for what is no number of tokens."""
    found = next((value[name] for name in names if value.get(name) is not None), None)
    if found is None:
        return None
    if type(found) is not int or not 0 <= found < _MOST_TOKENS:
        raise Unreadable("a number of tokens is none")
    return found
