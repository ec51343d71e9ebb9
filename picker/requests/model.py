"""The request, as far as placing it needs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec


class Dialect(enum.Enum):
    """The API that a path belongs to; decides how a body is read and how an error looks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    ENGINE = "engine"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A completion's prompt, as text."""

    text: str = field(repr=False)
    add_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A completion's prompt, as token ids. Whether they are in the vocabulary, or negative, nobody has checked.

    `unread` is about how many follow that were left in the body. `media`: where images, audio and video begin among the
    tokens, and the identifiers that engines know them by.
    """

    tokens: Sequence[int] = field(repr=False)
    unread: int = 0
    media: Sequence[tuple[int, str]] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A chat in the OpenAI form, and what else the template sees.

    The messages are as the client sent them: an element may lack any field, or hold any JSON type. `tools` are as an
    engine hands them to the template. `joins_system`: system messages between the others move to the first where the
    template takes them nowhere else.
    """

    messages: Sequence[dict[str, Any]] = field(repr=False)
    tools: Sequence[dict[str, Any]] | None = field(default=None, repr=False)
    documents: Sequence[dict[str, Any]] | None = field(default=None, repr=False)
    variables: dict[str, Any] = field(default_factory=dict, repr=False)
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    joins_system: bool = False


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that is still JSON in the request's body. `read` makes objects of it, once somebody needs them.

    `size` is its length in bytes, to judge whether reading belongs into a thread. `read` never raises: None is a prompt
    that nobody but the engine understands.

    `text` is the JSON itself, what templates write first before the rest, where equal bytes mean an equal prompt and
    more bytes a longer one. A client writes the same history in the same way each time, so this does where nobody needs
    the objects, and costs a third.
    """

    read: Callable[[], Prompt | None] = field(repr=False)
    size: int
    text: Sequence[msgspec.Raw] = field(default=(), repr=False)


class Terms(msgspec.Struct, frozen=True):
    """Whose request it is and how urgent, by its headers. Clients write these: never a metric label as they are.

    Times are in seconds, None where nothing usable was sent. `model` is a rewrite that a gateway asks for.
    """

    tenant: str = ""
    objective: str = ""
    session: str = ""
    request_id: str = ""
    model: str = ""
    timeout_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


class InferenceRequest(msgspec.Struct, frozen=True):
    """What a client asks for.

    `model` is None where none is named. `prompt` is None where there is none, or none that any engine caches: such a
    request is placed by load, and `unread_bytes` is the size of its body if it holds a prompt. `max_tokens` is None
    where the client left it to the engine, and 0 where nothing is generated. `answers` is how many continuations of the
    one prompt run side by side. `priority` is the engine's own, lower first.
    """

    dialect: Dialect
    model: str | None = None
    prompt: PendingPrompt | None = None
    max_tokens: int | None = None
    answers: int = 1
    stream: bool = False
    cache_salt: str = ""
    priority: int = 0
    unread_bytes: int = 0
    terms: Terms = Terms()
