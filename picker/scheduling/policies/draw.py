"""Numbers that look drawn and are not: hashes of a key and of a worker's epoch, so that decisions stay repeatable.

A worker keeps its number for a key whoever comes and goes beside it (rendezvous hashing, Thaler and Ravishankar 1998);
when it restarts with an empty cache it draws anew.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash

from picker.fleet.inflight import Floats
from picker.scheduling.request import SchedulingRequest

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def draw(key: int, epochs: npt.NDArray[np.uint64]) -> Floats:
    """For each worker a number from 0 up to 1, of the same shape as `epochs`: SplitMix64's finaliser (Steele 2014)."""
    with np.errstate(over="ignore"):
        mixed = _mix(epochs ^ np.uint64(key & 0xFFFFFFFFFFFFFFFF))
        # A second round, or epochs that differ in one bit stay neighbours.
        return _mix(mixed + _GOLDEN) / 2.0**64


def affinity_key(request: SchedulingRequest) -> int | None:
    """What keeps requests together: what the client says, else the start of the prompt, else nothing (None)."""
    if request.session:
        return xxhash.xxh3_64_intdigest(request.session.encode("utf-8", "surrogatepass"))
    # All prompts of a service may begin with the same block; they would be one session.
    return request.chain[min(1, len(request.chain) - 1)] if request.chain else None


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))
