"""Power of two choices: of two workers drawn for this request, the one with fewer open requests (Mitzenmacher 2001)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.draw import draw
from picker.scheduling.policies.situation import Situation

NAME = "power-of-two"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Open requests, and a surcharge on who was not drawn that nobody else's requests outweigh; shape (slots,)."""
    requests = situation.outstanding.requests.astype(np.float64)
    drawn = np.where(situation.eligible, draw(situation.request.sequence, situation.view.epochs), 2.0)
    bound = np.partition(drawn, 1)[1] if len(drawn) > 1 else 2.0
    return {"requests": requests, "not_drawn": np.where(drawn <= bound, 0.0, 1.0 + requests.max())}
