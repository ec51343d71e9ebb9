"""Policies by name. One is a module with a `NAME` and `terms(situation)`; adding one is one file and one word here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from picker.scheduling.policies import expected_delay, least_request, random, round_robin
from picker.scheduling.policies.situation import Situation

Terms = Mapping[str, npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Policy:
    """A named cost. `terms` gives the cost's parts, each of shape (slots,) in seconds; the least sum wins."""

    name: str
    terms: Callable[[Situation], Terms]


POLICIES: Mapping[str, Policy] = {
    module.NAME: Policy(module.NAME, module.terms) for module in (expected_delay, least_request, random, round_robin)
}
