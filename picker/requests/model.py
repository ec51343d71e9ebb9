"""The request, as far as placing it needs."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Dialect(enum.Enum):
    """The API that a path belongs to; decides how a body is read and how an error looks."""

    OPENAI = "openai"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A completion's prompt, as text."""

    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A completion's prompt, as token ids."""

    tokens: Sequence[int] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat: its messages and what else the template sees (tools, template arguments)."""

    messages: Sequence[dict[str, Any]] = field(repr=False)
    variables: dict[str, Any] = field(default_factory=dict, repr=False)


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What a client asks for.

    `model` is None where none is named. `prompt` is None where there is none, or none that we understand: such a
    request is placed by load. `max_tokens` is None where the client left it to the engine.
    """

    dialect: Dialect
    model: str | None = None
    prompt: Prompt | None = None
    max_tokens: int | None = None
    stream: bool = False
    cache_salt: str = ""
