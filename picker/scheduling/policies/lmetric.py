"""LMetric: tokens to prefill, times requests in the batch (arXiv 2603.15202)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "lmetric"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Tokens to prefill with this request, in thousands, times requests with it; shape (slots,)."""
    new = np.maximum(1, situation.request.prompt_tokens - situation.hit_tokens)
    return {"load": (prefill_tokens(situation) + new) / 1000 * (situation.outstanding.requests + 1)}


def prefill_tokens(situation: Situation) -> Floats:
    """Tokens placed on each worker that it has not prefilled yet, shape (slots,). The books keep them in seconds."""
    return situation.outstanding.prefill_s / situation.model.prefill_s_per_token
