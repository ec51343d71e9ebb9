"""Chance that can be told again: what equal costs are told apart by, from one number for each decision."""

from __future__ import annotations

from random import Random

_MASK = (1 << 64) - 1


class Ties(Random):
    """A stream of numbers that `start` begins anew (splitmix64). Seeding Python's own takes longer than a decision."""

    def __init__(self, number: int = 0):
        super().__init__(0)
        self._state = number

    def start(self, number: int) -> None:
        """The same number gives the same stream."""
        self._state = number

    def random(self) -> float:
        """At least 0, below 1."""
        return (self._next() >> 11) * 2.0**-53

    def getrandbits(self, bits: int, /) -> int:
        """`bits` is at most 64: as many as anybody needs to choose a slot."""
        return self._next() >> (64 - bits) if bits else 0

    def _next(self) -> int:
        # Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = ((self._state ^ (self._state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)
