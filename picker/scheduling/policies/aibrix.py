"""AIBrix's prefix-cache routing with its defaults: imbalance of 8 requests, mean plus one standard deviation.

Source: AIBrix `pkg/plugins/gateway/algorithms/prefix_cache.go`:

    if most requests - fewest > 8: the worker with the fewest requests
    else: the best match among the workers with at most mean + 1 standard deviation of requests, the fewest first
    without any match: the worker with the fewest requests
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "aibrix"
IMBALANCE = 8
DEVIATIONS = 1.0


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Share of the prompt that is missed, then requests; shape (slots,)."""
    requests, eligible = situation.outstanding.requests, situation.eligible
    own = requests[eligible]
    least = {"requests": requests.astype(np.float64)}
    if not len(own) or own.max() - own.min() > IMBALANCE or not situation.hit_tokens[eligible].any():
        return least
    missed = np.maximum(0.0, 1.0 - situation.hit_tokens / max(1, situation.request.prompt_tokens))
    is_full = requests > own.mean() + DEVIATIONS * own.std()
    # Match before requests: a percent of the prompt outweighs any number of them.
    return {
        "missed": np.floor(100 * missed),
        "full": np.where(is_full, 200.0, 0.0),
        "ties": requests / (1.0 + own.max()),
    }
