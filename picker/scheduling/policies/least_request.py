"""Least request: the worker with the fewest requests that pickers have placed and not seen end."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.situation import Situation

NAME = "least-request"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Open requests, one second for each, shape (slots,)."""
    return {"requests": situation.outstanding.requests.astype(np.float64)}
