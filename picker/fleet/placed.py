"""What this picker has sent to workers lately: which of them hold which prefix as far as nobody has said so yet."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from math import inf


class PlacedBlocks:
    """What this picker has sent to workers lately, whether or not they said that they hold it.

    Two uses. For workers that publish KV events: entries of a few seconds, which bridge the time until the event
    arrives, so that a burst of equal prompts does not scatter. For workers or prompts without events: an approximate
    index, bounded for each slot in blocks (about its KV capacity) and in time.

    What falls off never leaves a hole, which is the monotony that `picker.fleet.index.depths` needs: see `_Placed`.
    """

    def __init__(self, ttl_s: float, blocks_per_slot: int):
        self._ttl_s = ttl_s
        self._capacity = blocks_per_slot
        self._capacities: dict[int, int] = {}
        self._slots: dict[int, _Placed] = {}
        self._owners: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<PlacedBlocks {len(self._owners)} blocks of {len(self._slots)} slots, {self._ttl_s:g} s>"

    def place(self, slot: int, chain: Sequence[int], now: float) -> None:
        """A prompt with these blocks goes to this slot. Of a chain beyond the slot's bound, the head counts."""
        placed, owners, bit = self._slots.setdefault(slot, _Placed()), self._owners, 1 << slot
        capacity = self._capacities.get(slot, self._capacity)
        new = placed.add(chain[:capacity], now)
        if owners.keys().isdisjoint(new):
            owners.update(dict.fromkeys(new, bit))
        else:
            owners.update([(block, owners.get(block, 0) | bit) for block in new])
        self._drop(slot, placed.shrink(len(placed) - capacity))

    def resize(self, slot: int, blocks: int) -> None:
        """Another bound for this slot, from now on: what is beyond it falls off with what is placed next."""
        self._capacities[slot] = blocks

    def expire(self, now: float, limit: int = 1000) -> None:
        """Drops what is older than the time to live, about `limit` entries of each slot at a time."""
        for slot, placed in self._slots.items():
            self._drop(slot, placed.shrink(limit, now - self._ttl_s))

    def confirm(self, slot: int, blocks: Iterable[int]) -> None:
        """This slot has announced these blocks: a chain that ends in one of them is not expected any more, but there.

        From here on what the worker says of it counts, also that it is gone.
        """
        placed = self._slots.get(slot)
        if placed:
            self._drop(slot, placed.end(blocks))

    def withdraw(self, slot: int, chain: Sequence[int], held: int) -> None:
        """This chain has not been computed there after all, but for the `held` blocks that it began with."""
        placed = self._slots.get(slot)
        if placed:
            self._drop(slot, placed.withdraw(chain[: self._capacities.get(slot, self._capacity)], held))

    def clear(self, slot: int) -> None:
        """Nothing is expected on this slot any more."""
        self._drop(slot, self._slots.pop(slot, ()))

    def owners(self, block: int) -> int:
        """Bit mask of the slots that were sent this block."""
        return self._owners.get(block, 0)

    def _drop(self, slot: int, blocks: Iterable[int]) -> None:
        owners, bit, dropped = self._owners, 1 << slot, [*blocks]
        masks = [*map(owners.pop, dropped, repeat(0))]
        if masks.count(bit) < len(masks):
            owners.update([(block, rest) for block, mask in zip(dropped, masks, strict=True) if (rest := mask & ~bit)])


class _Run:
    """Blocks that follow one another, without a branch or an end in between: a node of a radix tree."""

    __slots__ = ("blocks", "children", "parent")

    def __init__(self, blocks: list[int], parent: _Run | None):
        self.blocks = blocks
        self.parent = parent
        self.children = 0


class _Placed:
    """The chains placed on one slot, as a radix tree: what a chain shares with an earlier one is kept once.

    Blocks are dropped from the ends of chains, least recently placed end first, up to where another chain branches off
    or ends. Chains of equal hashes (XXH3 can be forced) confuse what is dropped when, and nothing else.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}
        """By each of their blocks."""
        self._ends: OrderedDict[_Run, float] = OrderedDict()
        """The runs that chains end with, and when they were placed."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def add(self, chain: Sequence[int], now: float) -> Sequence[int]:
        """Places a chain; those of its blocks that are new."""
        known = bisect_left(chain, True, key=lambda block: block not in self._runs)
        run = self._ending_in(chain[known - 1]) if known else None
        new = chain[known:]
        if new:
            run = self._grow(run, [*new])
        if run is not None:
            self._ends[run] = now
            self._ends.move_to_end(run)
        return new

    def shrink(self, excess: int, until: float = inf) -> list[int]:
        """Drops up to so many blocks, of chains that were placed until then; which they were."""
        dropped: list[int] = []
        while self._ends and len(dropped) < excess:
            end, placed_at = next(iter(self._ends.items()))
            if placed_at > until:
                break
            del self._ends[end]
            self._cut(end, placed_at, excess, dropped)
        if not self._ends:
            dropped += self._runs
            self._runs.clear()
        return dropped

    def end(self, blocks: Iterable[int]) -> list[int]:
        """Drops the chains that end in these blocks, up to where others branch off or end; which blocks that is."""
        dropped: list[int] = []
        for block in blocks:
            if run := self._ended_by(block):
                self._cut(run, self._ends.pop(run), len(self._runs), dropped)
        return dropped

    def withdraw(self, chain: Sequence[int], held: int) -> list[int]:
        """Drops what this chain has beyond its first `held` blocks, unless others need it; which blocks that is."""
        dropped: list[int] = []
        if held < len(chain) and (run := self._ended_by(chain[-1])):
            placed_at = self._ends.pop(run)
            if held and chain[held - 1] in self._runs:
                self._ends.setdefault(self._ending_in(chain[held - 1]), placed_at)
            self._cut(run, placed_at, len(self._runs), dropped)
        return dropped

    def _ended_by(self, block: int) -> _Run | None:
        """The run that ends a chain with this block."""
        run = self._runs.get(block)
        return run if run is not None and run in self._ends and run.blocks[-1] == block else None

    def _ending_in(self, block: int) -> _Run:
        """The run that this block ends, which may have to be cut in two. Its end and what follows go with the rest."""
        run = self._runs[block]
        place = run.blocks.index(block) + 1
        if place == len(run.blocks):
            return run
        head = _Run(run.blocks[:place], run.parent)
        head.children = 1
        run.blocks, run.parent = run.blocks[place:], head
        self._runs.update(dict.fromkeys(head.blocks, head))
        return head

    def _grow(self, parent: _Run | None, blocks: list[int]) -> _Run:
        if parent is not None:
            parent.children += 1
            # Whoever keeps what follows keeps this.
            self._ends.pop(parent, None)
        run = _Run(blocks, parent)
        self._runs.update(dict.fromkeys(blocks, run))
        return run

    def _cut(self, run: _Run | None, placed_at: float, excess: int, dropped: list[int]) -> None:
        while run is not None and not run.children and run not in self._ends:
            room = excess - len(dropped)
            gone = run.blocks[-room:] if room > 0 else []
            dropped += gone
            for block in gone:
                self._runs.pop(block, None)
            if len(gone) < len(run.blocks):
                del run.blocks[len(run.blocks) - len(gone) :]
                self._ends[run] = placed_at
                self._ends.move_to_end(run, last=False)
                return
            run = run.parent
            if run is not None:
                run.children -= 1
