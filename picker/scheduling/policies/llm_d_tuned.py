"""llm-d with two more of its scorers, token load (weight 4, 32k tokens) and active requests (2), and prefix at 6.

Source: llm-d-router, `token-load-scorer` and `active-request-scorer`. Weights by us, the best of a few in
our simulations (with the default prefix weight of 3 agents leave their caches in crowds):

    tokens    1 - min(1, tokens in flight by the picker's own books / 32,768)
    requests  (most requests in flight - own) / most; 1 for idle workers
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies import llm_d
from picker.scheduling.policies.lmetric import prefill_tokens
from picker.scheduling.policies.situation import Situation

NAME = "llm-d-tuned"
PREFIX = 6.0
TOKENS = 4.0
FULL_TOKENS = 32_768
REQUESTS = 2.0


def terms(situation: Situation) -> Mapping[str, Floats]:
    """What each scorer takes off its full weight, shape (slots,)."""
    requests = situation.outstanding.requests
    most = max(1, int(requests[situation.eligible].max(initial=0)))
    return {
        **llm_d.terms(situation),
        "prefix": PREFIX * llm_d.missed(situation),
        "tokens": TOKENS * np.minimum(1.0, prefill_tokens(situation) / FULL_TOKENS),
        "requests": REQUESTS * np.minimum(1.0, requests / most),
    }
