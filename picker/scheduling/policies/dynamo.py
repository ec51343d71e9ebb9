"""NVIDIA Dynamo's KV router at temperature 0: overlap weight 1 (default), and 8 under the name `dynamo-8`.

Source: Dynamo `lib/llm/src/kv_router/scheduler.rs`: weight * prefill blocks + decode blocks, where prefill blocks are
those that the worker would have to compute with this request and decode blocks those of all requests in flight on it.
Here the latter are counted for each request, though requests may share them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.lmetric import prefill_tokens
from picker.scheduling.policies.situation import Situation

NAME = "dynamo"
BLOCK = 16
WEIGHT = 1.0


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Blocks of 16 tokens, in thousands, shape (slots,)."""
    return weighted(situation, WEIGHT)


def weighted(situation: Situation, weight: float) -> Mapping[str, Floats]:
    """The same for any weight of the prefill."""
    new = np.maximum(0, situation.request.prompt_tokens - situation.hit_tokens)
    return {
        "prefill": weight * (prefill_tokens(situation) + new) / (1000 * BLOCK),
        "decode": situation.outstanding.context_tokens / (1000 * BLOCK),
    }
