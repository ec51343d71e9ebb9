"""What the parts of a feed count together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """`foreign`: records that no agent of this schema wrote, ignored. `entries`: events applied. `reloads`: from
    snapshots.
    """

    foreign: int = 0
    entries: int = 0
    reloads: int = 0
