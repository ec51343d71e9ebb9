"""Refusals in the shape that a client's SDK expects. Fixed texts only: nothing of the request is echoed."""

from __future__ import annotations

import msgspec

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 408: "RequestTimeout", 413: "PayloadTooLarge", 429: "RateLimit"}


def openai_error(status: int, reason: str, message: str) -> bytes:
    """The body of an OpenAI-style error, as vLLM and the OpenAI SDKs shape it, plus our machine-readable `reason`."""
    kind = _TYPES.get(status, "ServiceUnavailable")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": status, "reason": reason}})
