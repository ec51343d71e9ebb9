"""Prefixes that this picker has placed and other pickers have not been told of yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

MOST_BLOCKS = 2048
"""Of one prompt, 128k tokens; of a longer one other pickers know the head."""


class Placement(NamedTuple):
    """A prompt's index blocks, head first, on the worker of this epoch, which will announce them itself or not."""

    epoch: int
    is_awaited: bool
    blocks: Sequence[int]


class RoutedLog:
    """A queue of placements, bounded in blocks: what nobody fetches in time is lost, the oldest first.

    To miss one costs another picker a guess. `most_blocks_each`: of a longer prompt the head counts.
    """

    def __init__(self, most_blocks: int = 65_536, most_blocks_each: int = MOST_BLOCKS):
        self.lost = 0
        self._most_blocks = most_blocks
        self._most_blocks_each = most_blocks_each
        self._placements: deque[Placement] = deque()
        self._blocks = 0

    def __repr__(self) -> str:
        return f"<RoutedLog {len(self._placements)} prompts, {self._blocks} blocks>"

    def __len__(self) -> int:
        return len(self._placements)

    def add(self, epoch: int, is_awaited: bool, chain: Sequence[int]) -> None:
        """A prompt has been placed."""
        blocks = chain[: self._most_blocks_each]
        if not blocks:
            return
        self._placements.append(Placement(epoch, is_awaited, blocks))
        self._blocks += len(blocks)
        while self._blocks > self._most_blocks:
            self._blocks -= len(self._placements.popleft().blocks)
            self.lost += 1

    def take(self, most_blocks: int) -> list[Placement]:
        """Removes the next placements, as many as have at most so many blocks together, but at least one."""
        taken: list[Placement] = []
        room = most_blocks
        while self._placements and (not taken or len(self._placements[0].blocks) <= room):
            taken.append(self._placements.popleft())
            room -= len(taken[-1].blocks)
            self._blocks -= len(taken[-1].blocks)
        return taken
