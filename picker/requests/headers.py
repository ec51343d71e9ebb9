"""What a request's headers say about it: whose it is, how urgent, and which API."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from picker.requests.model import Terms

MOST_NAME_CHARS = 256
"""Longer identifiers are ignored: they are keys of books that we keep."""

MOST_SECONDS = 86_400.0

# Newest name first; the older ones are what Gateway API gateways and earlier llm-d releases send.
_TENANT = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
_OBJECTIVE = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
_MODEL = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")
_SESSION = ("x-session-id", "x-session-affinity", "x-claude-code-session-id", "session-id", "session_id")
_REQUEST_ID = ("x-request-id",)
_TTFT_MS = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_TPOT_MS = ("x-llm-d-slo-tpot-ms", "x-slo-tpot-ms")
_TIMEOUT = "x-request-timeout"
_PATHS = (":path", "x-original-path", "x-envoy-original-path")
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*(ms|s|m)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}


def read_terms(headers: Mapping[str, str]) -> Terms:
    """Header names are in lower case. What makes no sense is left out: a header is no reason to refuse."""
    return Terms(
        tenant=_name(headers, _TENANT),
        objective=_name(headers, _OBJECTIVE),
        session=_name(headers, _SESSION),
        request_id=_name(headers, _REQUEST_ID),
        model=_name(headers, _MODEL),
        timeout_s=_seconds(headers.get(_TIMEOUT, "")),
        ttft_s=_milliseconds(headers, _TTFT_MS),
        tpot_s=_milliseconds(headers, _TPOT_MS),
    )


def paths(headers: Mapping[str, str]) -> list[str]:
    """The path as it is and, where a gateway has rewritten it, as the client sent it."""
    return [path for name in _PATHS if (path := headers.get(name))]


def required_labels(headers: Mapping[str, str], label_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """What these headers require of a worker: `label_of` gives the label that each one is about.

    A header holds the values that will do, separated by commas. One without any requires nothing.
    """
    required = {}
    for name, label in label_of.items():
        if values := tuple(filter(None, map(str.strip, headers.get(name, "")[:MOST_NAME_CHARS].split(",")))):
            required[label] = values
    return required


def _name(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        if found := headers.get(name):
            return found if len(found) <= MOST_NAME_CHARS else ""
    return ""


def _seconds(text: str) -> float | None:
    """`30`, `2.5s`, `500ms`, `2m`."""
    match = _DURATION.fullmatch(text.strip())
    return _bounded(float(match[1]) * _UNITS[match[2]]) if match else None


def _milliseconds(headers: Mapping[str, str], names: tuple[str, ...]) -> float | None:
    for name in names:
        if match := _DURATION.fullmatch(headers.get(name, "").strip()):
            return _bounded(float(match[1]) / 1000) if match[2] is None else None
    return None


def _bounded(seconds: float) -> float | None:
    return min(seconds, MOST_SECONDS) if math.isfinite(seconds) and seconds > 0 else None
