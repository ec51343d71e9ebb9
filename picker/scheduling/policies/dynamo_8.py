"""NVIDIA Dynamo's KV router with an overlap weight of 8: the best of ten in our sweeps."""

from __future__ import annotations

from collections.abc import Mapping

from picker.fleet.inflight import Floats
from picker.scheduling.policies import dynamo
from picker.scheduling.policies.situation import Situation

NAME = "dynamo-8"
WEIGHT = 8.0


def terms(situation: Situation) -> Mapping[str, Floats]:
    """Blocks of 16 tokens, in thousands, shape (slots,)."""
    return dynamo.weighted(situation, WEIGHT)
