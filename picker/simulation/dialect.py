"""The requests of the OpenAI dialect, checked as vLLM 0.32 checks them, and its refusals."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

VERSION = "0.32.0"
DEFAULT_MAX_TOKENS = 16
_T = TypeVar("_T", bound=msgspec.Struct)
_PATH = re.compile(r"(.*) - at `\$\.?(.*)`")


class ApiError(Exception):
    """An answer other than 200: `status`, and what the error object says."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None):
        super().__init__(message)
        self.status = status
        self._error = {"message": message, "type": kind, "param": param, "code": status}

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": self._error}


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct):
    """What completions and chat completions have in common. Fields not named here are accepted and ignored, as is
    `ignore_eos`: an answer has exactly `max_tokens` tokens.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None

    def check(self, max_model_len: int) -> None:
        """Raises ApiError for what no prompt could mend."""
        if self.stream_options and not self.stream:
            raise invalid("stream_options", "Stream options can only be defined when `stream=True`.")
        if self.temperature is not None and self.temperature < 0:
            raise invalid("temperature", f"temperature must be non-negative, got {self.temperature}.", self.temperature)
        wanted = self.answer_tokens
        if wanted < 1:
            raise invalid("max_tokens", f"max_tokens must be at least 1, got {wanted}.", wanted)
        if wanted > max_model_len:
            message = f"max_tokens={wanted} cannot be greater than max_model_len={max_model_len}. "
            raise invalid("max_tokens", message + "Please request fewer output tokens.", wanted)

    @property
    def answer_tokens(self) -> int:
        """How many tokens to produce."""
        return DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with an event that carries the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_everywhere(self) -> bool:
        """Whether each event of a stream carries the usage so far."""
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionRequest(GenerationRequest):
    """POST /v1/completions."""

    prompt: str | list[Any] | None = None

    def prompts(self) -> list[str | list[int]]:
        """One or many, each as text or as token ids. Raises ApiError."""
        match self.prompt:
            case str(text) if text:
                return [text]
            case [str() as text, *_] as texts:
                return [text, *_each(texts[1:], str)]
            case [int(), *_] as tokens:
                return [_each(tokens, int)]
            case [[int(), *_], *_] as lists:
                return [_each(tokens, int) for tokens in _each(lists, list)]
        raise invalid("prompt", "Either prompt or prompt_embeds must be provided and non-empty.")


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = []
    max_completion_tokens: int | None = None

    @property
    def answer_tokens(self) -> int:
        """How many tokens to produce."""
        newer = self.max_completion_tokens
        return super().answer_tokens if newer is None else newer

    def check(self, max_model_len: int) -> None:
        """Raises ApiError for what no tokenizer could mend."""
        super().check(max_model_len)
        if not self.messages:
            message = "Cannot apply chat template to an empty conversation. Provide at least one message."
            raise ApiError(400, "BadRequestError", message)


class TokenizeRequest(msgspec.Struct):
    """POST /tokenize, for a prompt or for messages."""

    prompt: str | None = None
    messages: list[dict[str, Any]] = []
    model: str | None = None


class DetokenizeRequest(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


def _each(values: list[Any], kind: type) -> list[Any]:
    for value in values:
        if not isinstance(value, kind):
            raise _validation("body.prompt", f"Input should be a valid {kind.__name__}")
    return values


def parse(body: bytes, content_type: str, kind: type[_T]) -> _T:
    """The request in `body`. Raises ApiError, always 400: vLLM does not use 422."""
    if not body:
        raise _validation("body", "Field required")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, "Bad Request", message)
    try:
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        match = _PATH.fullmatch(str(error))
        message, path = match.groups() if match else (str(error), "")
        raise _validation(f"body.{path}" if path else "body", message) from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _validation("body", "JSON decode error") from None


def _validation(where: str, message: str) -> ApiError:
    return ApiError(400, "Bad Request", f"1 validation error:\n  {{'loc': '{where}', 'msg': '{message}'}}", where)


def invalid(param: str, message: str, value: object = None) -> ApiError:
    """A request that can be read and not be served."""
    detail = f"parameter={param}" if value is None else f"parameter={param}, value={value}"
    return ApiError(400, "BadRequestError", f"{message} ({detail})", param)


def unknown_model(name: str, known: Sequence[str]) -> ApiError:
    """No such model or adapter here."""
    message = f"The model `{name}` does not exist. Valid aliases: {', '.join(known)}."
    return ApiError(404, "NotFoundError", message, "model")


def too_long(prompt_tokens: int, max_model_len: int) -> ApiError:
    """A prompt that leaves no room for an answer."""
    message = (
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains {prompt_tokens} "
        "input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt."
    )
    return invalid("input_tokens", message, prompt_tokens)


def out_of_vocabulary(token: int) -> ApiError:
    """A token id that the model does not have."""
    return ApiError(400, "BadRequestError", f"Token id {token} is out of vocabulary")


def busy() -> ApiError:
    """The queue is full. Note that vLLM sends no Retry-After."""
    message = (
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance."
    )
    return ApiError(503, "Service Unavailable", message)
