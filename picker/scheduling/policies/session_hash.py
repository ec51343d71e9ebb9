"""Session hash: a session always goes to the same worker, by rendezvous hashing, whatever the load.

A session is what the client names in a header; else requests whose prompts have the same first two blocks are one.
Requests of which neither is known are spread at random.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.scheduling.policies.draw import affinity_key, draw
from picker.scheduling.policies.situation import Situation

NAME = "session-hash"


def terms(situation: Situation) -> Mapping[str, Floats]:
    """The worker's number for this session, from 0 to 1, shape (slots,)."""
    key = affinity_key(situation.request)
    epochs = situation.view.epochs
    return {"distance": np.zeros(len(epochs)) if key is None else draw(key, epochs)}
