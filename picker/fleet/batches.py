"""Long sequences in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Parts of `size` items, the last one perhaps shorter."""
    for at in range(0, len(items), size):
        yield items[at : at + size]
