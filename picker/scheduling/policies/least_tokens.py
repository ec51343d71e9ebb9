"""Least tokens: the worker with the fewest prompt tokens in requests that pickers have placed and not seen end."""

from __future__ import annotations

from collections.abc import Mapping

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "least-tokens"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Prompt tokens of open requests, in thousands, shape (slots,)."""
    return {"kilotokens": situation.outstanding.context_tokens / 1000}
