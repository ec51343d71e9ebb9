"""A paged KV cache with prefix caching: which blocks exist, who uses them, what they hold.

A *block* here is a physical one, a number below `num_blocks`. A block that is full carries the hash of the prefix that
ends with it; several blocks can carry the same hash (a fully cached prompt recomputes its last block into a new one).
Blocks that nobody uses wait in the order in which they will be taken: empty ones first, then the least recently used.
A sequence gives its blocks back tail first, so a prefix always outlives its extensions.

Events come out as vLLM would publish them: one BlockStored for a run of blocks, also where the hash was there before,
and one BlockRemoved for each block that is evicted.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Blocks that were filled, in prompt order. `extra_keys`: for each, what beside its tokens went into its hash."""

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: tuple[int, ...]
    block_size: int
    extra_keys: tuple[tuple[str, ...] | None, ...]
    lora_name: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """Blocks that were evicted. Another copy of the same hash may still be there."""

    block_hashes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The whole cache was forgotten."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KvCache:
    """Reference-counted blocks. The caller asks `available` before it allocates."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._users = [0] * num_blocks
        self._hash: list[int | None] = [None] * num_blocks
        self._copies: dict[int, dict[int, None]] = {}
        self._unused: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._events: list[CacheEvent] = []

    def __repr__(self) -> str:
        return f"<KvCache {self.used_blocks}/{self.num_blocks} used, {len(self._copies)} hashes>"

    @property
    def used_blocks(self) -> int:
        """Blocks that some sequence holds."""
        return self.num_blocks - len(self._unused)

    def find(self, hashes: Sequence[int]) -> list[int]:
        """Blocks for the longest run of `hashes`, from the first on, that is cached."""
        found = []
        for value in hashes:
            copies = self._copies.get(value)
            if copies is None:
                break
            found.append(next(iter(copies)))
        return found

    def available(self, beside: Sequence[int] = ()) -> int:
        """How many blocks could be allocated once `beside`, found before, are in use."""
        return len(self._unused) - sum(1 for block in beside if self._users[block] == 0)

    def share(self, blocks: Sequence[int]) -> None:
        """One more user for each of `blocks`."""
        for block in blocks:
            self._users[block] += 1
            self._unused.pop(block, None)

    def allocate(self, count: int) -> list[int]:
        """Blocks to write to, for one user. Evicts what was cached in them. Raises KeyError when there are too few."""
        blocks = [self._unused.popitem(last=False)[0] for _ in range(count)]
        for block in blocks:
            self._users[block] = 1
            self._evict(block)
        return blocks

    def fill(self, blocks: Sequence[int], stored: BlockStored) -> None:
        """`blocks` now hold what `stored` says, one hash each, and can be found."""
        for block, value in zip(blocks, stored.block_hashes, strict=True):
            self._hash[block] = value
            self._copies.setdefault(value, {})[block] = None
        self._events.append(stored)

    def release(self, blocks: Sequence[int]) -> None:
        """One user less for each of a sequence's blocks, given in prompt order."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block] == 0:
                self._unused[block] = None
                self._unused.move_to_end(block, last=self._hash[block] is not None)

    def clear(self) -> bool:
        """Forget everything. False, and nothing happens, while any block is in use (as in vLLM)."""
        if self.used_blocks:
            return False
        self._hash = [None] * self.num_blocks
        self._copies.clear()
        self._events.append(AllBlocksCleared())
        return True

    def take_events(self) -> tuple[CacheEvent, ...]:
        """What happened since the last call, in order."""
        events, self._events = tuple(self._events), []
        return events

    def contents(self) -> Counter[int]:
        """Copies of each cached hash."""
        return Counter({value: len(copies) for value, copies in self._copies.items()})

    def _evict(self, block: int) -> None:
        value, self._hash[block] = self._hash[block], None
        if value is None:
            return
        copies = self._copies[value]
        del copies[block]
        if not copies:
            del self._copies[value]
        self._events.append(BlockRemoved((value,)))
