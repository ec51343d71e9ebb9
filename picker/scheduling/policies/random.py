"""Random: every worker costs the same, and ties are broken at random."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "random"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Nothing, shape (slots,)."""
    return {"none": np.zeros(len(situation.eligible))}
