"""Refusals in the shape that a client's SDK expects. Fixed texts only: nothing of the request is echoed."""

from __future__ import annotations

import msgspec

from picker.requests.model import Dialect

_OPENAI = {
    400: "BadRequestError",
    404: "NotFoundError",
    408: "RequestTimeout",
    413: "PayloadTooLarge",
    429: "RateLimit",
}
_ANTHROPIC = {
    400: "invalid_request_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class BadRequest(ValueError):
    """The body cannot be a request of this API. The message is fixed text: it never quotes the body."""


def error_body(dialect: Dialect, status: int, reason: str, message: str) -> bytes:
    """The JSON body of an error. `reason` is ours, machine-readable, and an addition to either shape."""
    if dialect is Dialect.ANTHROPIC:
        return anthropic_error(status, reason, message)
    return openai_error(status, reason, message)


def openai_error(status: int, reason: str, message: str) -> bytes:
    """As vLLM and the OpenAI SDKs shape it."""
    kind = _OPENAI.get(status, "ServiceUnavailable")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": status, "reason": reason}})


def anthropic_error(status: int, reason: str, message: str) -> bytes:
    """As the Anthropic API shapes it: SDKs retry by the status and show the type."""
    kind = _ANTHROPIC.get(status, "overloaded_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message, "reason": reason}})
