"""Preble's E2: exploit a long match, else explore by cost (Srivatsa et al., ICLR '25), without its rebalancing.

if more than half of the prompt is cached somewhere: of the workers with the longest match the least loaded
else: the least sum of work of the last while (prefill and decode), of evictions, and of this request's own prefill
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.others import WINDOW_S
from picker.scheduling.policies.situation import Situation

NAME = "preble"
EXPLOIT = 0.5


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Seconds, shape (slots,)."""
    books, model, request = situation.outstanding, situation.model, situation.request
    decode_s = request.expected_output_tokens * model.decode_s_per_request
    load = books.utilisation * WINDOW_S + books.requests * decode_s
    best = int(situation.hit_tokens[situation.eligible].max(initial=0))
    if best > EXPLOIT * request.prompt_tokens:
        return {"load": load, "missed": np.where(situation.hit_tokens == best, 0.0, 1.0 + load.max())}
    # What this prompt evicts is computed again if it comes back, which a fuller cache makes likelier.
    evicted = np.clip(situation.view.kv_used, 0.0, 1.0) * situation.work_s
    return {"load": load, "evict": evicted, "prefill": situation.work_s}
