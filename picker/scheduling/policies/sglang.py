"""SGLang's cache-aware router with its defaults: cache threshold 0.3, balance by 64 requests and 1.5 times.

Source: SGLang `sgl-router/src/policies/cache_aware.rs`:

    if most requests - fewest > 64 and most > 1.5 * fewest: the worker with the fewest requests
    elif the best match is more than 0.3 of the prompt: the worker with the best match
    else: the worker with the smallest tree

A tree grows by what is placed on a worker and was not in it; here the last minutes count, as its eviction comes late.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "sglang"
THRESHOLD = 0.3
BALANCE_REQUESTS = 64
BALANCE_RATIO = 1.5


def terms(situation: Situation) -> Mapping[str, Floats]:
    """The one thing that counts in this situation, shape (slots,)."""
    requests, eligible = situation.outstanding.requests, situation.eligible
    fewest, most = (int(requests[eligible].min()), int(requests[eligible].max())) if eligible.any() else (0, 0)
    if most - fewest > BALANCE_REQUESTS and most > BALANCE_RATIO * fewest:
        return {"requests": requests.astype(np.float64)}
    prompt = max(1, situation.request.prompt_tokens)
    if situation.hit_tokens[eligible].max(initial=0) > THRESHOLD * prompt:
        return {"missed": np.maximum(0.0, 1.0 - situation.hit_tokens / prompt)}
    return {"tree": _kilotokens_inserted(situation)}


def _kilotokens_inserted(situation: Situation) -> Floats:
    tokens = np.zeros(len(situation.eligible))
    for slot, inserted in situation.view.reuse.inserted(situation.now).items():
        tokens[slot] = inserted / 1000
    return tokens
