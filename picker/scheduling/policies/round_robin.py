"""Round robin: the eligible workers in turn, by the request's sequence number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "round-robin"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """How many turns until it is this worker's, one second for each, shape (slots,)."""
    rank = np.cumsum(situation.eligible) - 1
    turn = (rank - situation.request.sequence) % max(1, int(np.count_nonzero(situation.eligible)))
    return {"turn": turn.astype(np.float64)}
