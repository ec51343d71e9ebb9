"""Workloads by what the command line calls them: how much of one is a speed, a number of users or a rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from picker.simulation.discrete import traces
from picker.simulation.discrete.synthetic import BEHAVIOURS, Users, bursts
from picker.simulation.discrete.traces import Slice
from picker.simulation.discrete.workload import Ask, Source

BURSTS = "bursts"
NAMES = (*BEHAVIOURS, BURSTS)


class UnknownWorkload(ValueError):
    """No workload of this name. The message says which there are."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in an amount to be chosen. `unit` is what the amount counts; without fractions if it `is_whole`."""

    name: str
    unit: str
    build: Callable[[float, int], Source] = field(repr=False)
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Behaves:
    name: str
    warm_s: float
    until_s: float

    def __call__(self, amount: float, seed: int) -> Source:
        return Users(BEHAVIOURS[self.name], round(amount), seed, self.warm_s, self.until_s)


@dataclass(frozen=True, slots=True)
class _Replays:
    path: Path
    part: Slice

    def __call__(self, amount: float, seed: int) -> Source:
        # The first seed is 1, and its trace is the one that `read` gives.
        return traces.replay(_asks(self.path, seed - 1), amount, self.part)


@lru_cache(maxsize=4)
def _asks(path: Path, seed: int) -> Sequence[Ask]:
    return traces.read(path, seed)


@dataclass(frozen=True, slots=True)
class _Bursts:
    until_s: float

    def __call__(self, amount: float, seed: int) -> Source:
        return bursts(amount, seed, self.until_s)


def named(name: str, warm_s: float = 100.0, until_s: float = 260.0) -> Workload:
    """One of `NAMES`, measured from `warm_s` to `until_s`. Raises UnknownWorkload."""
    if name == BURSTS:
        return Workload(name, "requests/s", _Bursts(until_s))
    if name not in BEHAVIOURS:
        raise UnknownWorkload(f"there is no workload {name!r}; there are: {', '.join(NAMES)}")
    return Workload(name, "users", _Behaves(name, warm_s, until_s), is_whole=True)


def of_trace(path: Path, part: Slice | None = None) -> Workload:
    """A trace at a speed. Raises traces.BadTrace."""
    _asks(path, 0)
    return Workload(path.stem, "x", _Replays(path, part or Slice()))
