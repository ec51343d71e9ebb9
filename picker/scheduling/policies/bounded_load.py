"""Consistent hashing with bounded loads (Mirrokni, Thorup and Zadimoghaddam 2018).

As session hash, but a worker that has more than 1.25 times the mean of open requests is passed over for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies import session_hash
from picker.scheduling.policies.situation import Situation

NAME = "bounded-load-hash"
BOUND = 1.25


def terms(situation: Situation) -> Mapping[str, Floats]:
    """The worker's number for this session, from 0 to 1, plus by how many requests it is too full; shape (slots,)."""
    requests, eligible = situation.outstanding.requests, situation.eligible
    count = max(1, int(np.count_nonzero(eligible)))
    bound = np.ceil(BOUND * (requests[eligible].sum() + 1) / count)
    return {**session_hash.terms(situation), "excess": np.maximum(0.0, requests + 1 - bound)}
