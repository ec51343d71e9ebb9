"""Answers about all workers at once, kept until one of them changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from picker.fleet.facts import WorkerFacts

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

MOST = 1000


class Predicate(Protocol):
    """Something that holds of a worker or does not."""

    def __call__(self, facts: WorkerFacts, /) -> bool: ...  # noqa: D102


class Masks:
    """Arrays of shape (slots,) by what they are about, at most `most` of them."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._masks: dict[tuple[str, object], Bools] = {}

    def __repr__(self) -> str:
        return f"<Masks, {len(self._masks)} kept>"

    def clear(self) -> None:
        """A worker has come, gone or changed."""
        self._masks.clear()

    def where(self, workers: Mapping[int, WorkerFacts], capacity: int, kind: str, key: object, has: Predicate) -> Bools:
        """The slots of the workers of which `has` holds; `kind` and `key` say what that is about."""
        mask = self._masks.get((kind, key))
        if mask is None:
            mask = np.zeros(capacity, bool)
            mask[[slot for slot, facts in workers.items() if has(facts)]] = True
            # Clients can name what nobody has, in any number and at any length: that is not kept.
            if mask.any():
                self._keep((kind, key), mask)
        return mask

    def _keep(self, key: tuple[str, object], mask: Bools) -> None:
        if len(self._masks) >= self._most:
            self._masks.clear()
        self._masks[key] = mask


def slots_in(mask: int, capacity: int) -> Ints:
    """The slots whose bits are set."""
    bits = np.frombuffer(mask.to_bytes((capacity + 7) // 8, "little"), np.uint8)
    return np.unpackbits(bits, bitorder="little").nonzero()[0]
