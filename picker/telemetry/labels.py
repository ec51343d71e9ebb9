"""Label values that come from outside, within bounds."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

OTHER = "other"
"""Stands for all values beyond the bound, and for those that nobody knows."""

Child = TypeVar("Child")


class Children(Generic[Child]):
    """A metric's children by their labels: looked up once, and no more than `most` of them; the rest share one."""

    def __init__(self, make: Callable[..., Child], labels: int, most: int):
        """`make` is the metric's `labels`, which takes so many values."""
        self._make = make
        self._most = most
        self._others = (OTHER,) * labels
        self._found: dict[Hashable, Child] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __call__(self, *values: str) -> Child:
        """The child of these values."""
        child = self._found.get(values)
        if child is None:
            if len(self._found) >= self._most:
                return self._make(*self._others)
            child = self._found[values] = self._make(*values)
        return child
