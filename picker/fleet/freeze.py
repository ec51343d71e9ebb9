"""The state of a view that a decision depends on, taken out and put back: so that the decision can be made again.

What a worker holds of a prompt is not part of it, since an index is large: a frozen view answers with the hits that the
decision saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from picker.fleet.facts import WorkerFacts
from picker.fleet.masks import Bools, Ints
from picker.fleet.reuse import Sums
from picker.fleet.view import View

Array = npt.NDArray[Any]
_DERIVED = ("_fresh",)


@dataclass(frozen=True, slots=True)
class Frozen:
    """Arrays by name, shape (slots,), and what else there is. `sums` are what was placed and counted, by slot."""

    arrays: Mapping[str, Array]
    observed_at: float
    pickers: int
    heard_at: float
    breakers_open: tuple[int, ...]
    cordons: tuple[str, ...]
    sums: Mapping[int, tuple[float, ...]] = field(default_factory=dict)


def freeze(view: View) -> Frozen:
    """A copy: the view goes on."""
    others = view.inflight.others
    return Frozen(
        arrays={f"{part}.{name}": array.copy() for part, thing in _parts(view) for name, array in _arrays(thing)},
        observed_at=view._observed_at,
        pickers=others.pickers,
        heard_at=others._at,
        breakers_open=tuple(view.breakers._pauses),
        cordons=tuple(sorted(view.cordons)),
        sums=view.reuse.sums(),
    )


class FrozenView(View):
    """A view as it was.

    `hits`: how many leading blocks of the one prompt in question each slot holds; `loaded`: whether it has its adapter.
    Both have the shape (slots,).
    """

    def __init__(
        self, frozen: Frozen, facts: Mapping[int, WorkerFacts], hits: Ints, loaded: Bools, stale_after_s: float
    ):
        super().__init__(stale_after_s, capacity=len(hits))
        self._facts = dict(facts)
        self._hits = hits
        self._loaded = loaded
        for part, thing in _parts(self):
            for name, _ in list(_arrays(thing)):
                if (array := frozen.arrays.get(f"{part}.{name}")) is not None:
                    setattr(thing, name, array)
        self._observed_at = frozen.observed_at
        self.inflight.others.pickers, self.inflight.others._at = frozen.pickers, frozen.heard_at
        self.inflight.strangers.total = int(self.inflight.strangers.requests.sum())
        self.breakers._pauses = dict.fromkeys(frozen.breakers_open, 0.0)
        self.cordons = frozenset(frozen.cordons)
        # Which endpoints the pool had is not kept; that it left somebody out is.
        self.members = frozenset() if self.outside.any() else None
        self.reuse._slots = {slot: Sums(*values) for slot, values in frozen.sums.items()}

    def hit_blocks(self, chain: Sequence[int]) -> Ints:
        """As it was: of the prompt that the decision was about."""
        return self._hits

    def with_adapter(self, adapter: str) -> Bools:
        """As it was: of the adapter that the request was for."""
        return self._loaded


def _parts(view: View) -> Iterator[tuple[str, object]]:
    yield "view", view
    yield "inflight", view.inflight
    yield "others", view.inflight.others
    yield "strangers", view.inflight.strangers
    yield "breakers", view.breakers


def _arrays(thing: object) -> Iterator[tuple[str, Array]]:
    for name, value in vars(thing).items():
        if isinstance(value, np.ndarray) and name not in _DERIVED:
            yield name, value
