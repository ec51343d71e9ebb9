"""Which worker holds which prefix: from index block to the set of slots that hold it, as bits of an int.

Agents publish a block only while all its ancestors are present, so for each worker presence along a prompt's chain is
monotone: held up to some depth, absent beyond. `depths` relies on it and bisects: log2(n) probes for each distinct
depth, whatever the number of workers, instead of one probe for each block.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain as joined
from itertools import islice
from math import inf

Depths = list[tuple[int, int]]
"""(number of leading blocks held, bit mask of the slots that hold exactly so many)."""

MOST_DEPTHS = 16
_ROUGH_LOOKS = 16

_OWNER_BITS, _HELD_BITS = 8, 4
_OWNER_PARTS, _HELD_PARTS = 1 << _OWNER_BITS, 1 << _HELD_BITS
_OWNER_MASK, _HELD_MASK = _OWNER_PARTS - 1, _HELD_PARTS - 1
_Held = tuple[dict[int, None], ...]
"""The blocks of a slot, by other bits of them than the owners are."""


class PrefixIndex:
    """What agents say that workers hold. Bounded by what they publish: 8 bytes a block there, 140 to 190 here.

    Plain dicts were measured against sorted arrays (`python -m benchmarks.view`): up to ten times the memory, and less
    than a hundredth of the time to store a block. There are many small ones, because one of millions of entries holds
    everything up for a tenth of a second when it grows. Sets would do, but for the collector, which walks through them.
    """

    def __init__(self) -> None:
        self._owners: tuple[dict[int, int], ...] = tuple({} for _ in range(_OWNER_PARTS))
        self._held: dict[int, _Held] = {}
        self._xor: dict[int, int] = {}
        self._trusted = 0

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self)} blocks of {len(self._held)} slots>"

    def __len__(self) -> int:
        return sum(map(len, self._owners))

    def store(self, slot: int, blocks: Iterable[int]) -> None:
        """These blocks are on this slot now; one that was there already changes nothing."""
        parts, owners, bit = self._parts_of(slot), self._owners, 1 << slot
        xor = self._xor.get(slot, 0)
        # Masks are shared where they are equal: with a thousand slots one takes 160 bytes.
        before, after = None, bit
        for block in blocks:
            held = parts[block >> _OWNER_BITS & _HELD_MASK]
            if block not in held:
                held[block] = None
                part = owners[block & _OWNER_MASK]
                mask = part.get(block)
                if mask is not before:
                    before, after = mask, bit if mask is None else mask | bit
                part[block] = after
                xor ^= block
        self._xor[slot] = xor

    def remove(self, slot: int, blocks: Iterable[int]) -> None:
        """These blocks have left this slot; one that was not there changes nothing."""
        parts, bit, xor = self._parts_of(slot), 1 << slot, self._xor.get(slot, 0)
        for block in blocks:
            held = parts[block >> _OWNER_BITS & _HELD_MASK]
            if block in held:
                del held[block]
                self._disown(block, bit)
                xor ^= block
        self._xor[slot] = xor

    def clear(self, slot: int) -> None:
        """This slot holds nothing."""
        for held in self._held.pop(slot, ()):
            for block in held:
                self._disown(block, 1 << slot)
        self._xor.pop(slot, None)

    def forget(self, slot: int, limit: int) -> bool:
        """Like `clear`, but at most `limit` blocks of it; True when nothing is left."""
        parts = self._held.get(slot)
        if parts is None:
            return True
        self.remove(slot, list(islice(joined.from_iterable(parts), limit)))
        if any(parts):
            return False
        del self._held[slot], self._xor[slot]
        return True

    def replace(self, slot: int, blocks: Iterable[int]) -> None:
        """This slot holds exactly these blocks."""
        wanted = set(blocks)
        self.remove(slot, [block for block in joined.from_iterable(self._parts_of(slot)) if block not in wanted])
        self.store(slot, wanted)

    def digest(self, slot: int) -> tuple[int, int]:
        """Number and exclusive-or of the blocks of a slot, to compare with what its agent says."""
        return sum(map(len, self._held.get(slot, ()))), self._xor.get(slot, 0)

    def trust(self, slot: int, trusted: bool) -> None:
        """Whether a slot's blocks count. They do not while events of it are missing."""
        self._trusted = self._trusted | 1 << slot if trusted else self._trusted & ~(1 << slot)

    def trusts(self, slot: int) -> bool:
        """Whether a slot's blocks count."""
        return bool(self._trusted >> slot & 1)

    def owners(self, block: int) -> int:
        """Bit mask of the trusted slots that hold this block."""
        return self._owners[block & _OWNER_MASK].get(block, 0) & self._trusted

    def _parts_of(self, slot: int) -> _Held:
        parts = self._held.get(slot)
        if parts is None:
            parts = self._held[slot] = tuple({} for _ in range(_HELD_PARTS))
        return parts

    def _disown(self, block: int, bit: int) -> None:
        part = self._owners[block & _OWNER_MASK]
        rest = part[block] & ~bit
        if rest:
            part[block] = rest
        else:
            del part[block]


class PlacedBlocks:
    """What this picker has sent to workers lately, whether or not they said that they hold it.

    Two uses. For workers that publish KV events: entries of a few seconds, which bridge the time until the event
    arrives, so that a burst of equal prompts does not scatter. For workers or prompts without events: an approximate
    index, bounded for each slot in blocks (about its KV capacity) and in time.

    What falls off never leaves a hole, which is the monotony that `depths` needs: see `_Placed`.
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
        for block in placed.add(chain[:capacity], now):
            owners[block] = owners.get(block, 0) | bit
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
        owners, others = self._owners, ~(1 << slot)
        for block in blocks:
            rest = owners.get(block, 0) & others
            if rest:
                owners[block] = rest
            else:
                owners.pop(block, None)


class _Placed:
    """The chains placed on one slot, as a tree. A chain that goes on where an earlier one ended costs only what is new.

    Blocks are dropped from the ends of chains, least recently placed end first, up to where another chain branches off
    or ends. Chains of equal hashes (XXH3 can be forced) confuse what is dropped when, and nothing else.
    """

    def __init__(self) -> None:
        self._parents: dict[int, int | None] = {}
        self._forks: dict[int, int] = {}
        """How many more blocks than one go on from a block, where that is not 0: a leaf has -1."""
        self._ends: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parents)

    def __iter__(self) -> Iterator[int]:
        return iter(self._parents)

    def add(self, chain: Sequence[int], now: float) -> Sequence[int]:
        """Places a chain; those of its blocks that are new."""
        known = bisect_left(chain, True, key=lambda block: block not in self._parents)
        new = chain[known:]
        if new:
            last = chain[known - 1] if known else None
            self._parents.update(zip(new, [last, *new[:-1]], strict=True))
            self._forks[new[-1]] = -1
            if last is not None:
                self._fork(last, 1)
                # Whoever keeps what follows keeps this.
                self._ends.pop(last, None)
        if chain:
            self._ends[chain[-1]] = now
            self._ends.move_to_end(chain[-1])
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
            dropped += self._parents
            self._parents.clear()
            self._forks.clear()
        return dropped

    def end(self, blocks: Iterable[int]) -> list[int]:
        """Drops the chains that end in these blocks, up to where others branch off or end; which blocks that is."""
        dropped: list[int] = []
        for block in blocks:
            if block in self._ends:
                self._cut(block, self._ends.pop(block), len(self._parents), dropped)
        return dropped

    def withdraw(self, chain: Sequence[int], held: int) -> list[int]:
        """Drops what this chain has beyond its first `held` blocks, unless others need it; which blocks that is."""
        dropped: list[int] = []
        if held < len(chain) and chain[-1] in self._ends:
            placed_at = self._ends.pop(chain[-1])
            if held and chain[held - 1] in self._parents:
                self._ends.setdefault(chain[held - 1], placed_at)
            self._cut(chain[-1], placed_at, len(self._parents), dropped)
        return dropped

    def _cut(self, block: int | None, placed_at: float, excess: int, dropped: list[int]) -> None:
        while block in self._parents and self._forks.get(block) == -1 and block not in self._ends:
            if len(dropped) >= excess:
                self._ends[block] = placed_at
                self._ends.move_to_end(block, last=False)
                return
            dropped.append(block)
            del self._forks[block]
            block = self._parents.pop(block)
            self._fork(block, -1)

    def _fork(self, block: int | None, change: int) -> None:
        if block not in self._parents:
            return
        forks = self._forks.pop(block, 0) + change
        if forks:
            self._forks[block] = forks


def depths(chain: Sequence[int], owners: Callable[[int], int], most: int = MOST_DEPTHS) -> Depths:
    """How much of a prompt's chain each slot holds. Slots that hold nothing are not listed.

    `owners` maps a block to a bit mask of slots; see the module's docstring for what it must obey. Of slots beyond the
    `most` deepest lengths, what is given is somewhat less than what they hold: they are not the ones to choose, and
    prompts that many workers hold to many lengths must not be dear.
    """
    result: Depths = []
    left, end = owners(chain[0]) if chain else 0, len(chain)
    while left:
        if len(result) == most:
            return [*result, *_roughly(chain, owners, left, end)]
        last = _last_with_any(chain, owners, left, end)
        holders = owners(chain[last]) & left
        result.append((last + 1, holders))
        left, end = left & ~holders, last
    return result


def _last_with_any(chain: Sequence[int], owners: Callable[[int], int], slots: int, end: int) -> int:
    """The last position before `end` at which any of these is present, as they are at the first, by bisection."""
    good, bad = 0, end
    while bad - good > 1:
        middle = (good + bad) // 2
        if owners(chain[middle]) & slots:
            good = middle
        else:
            bad = middle
    return good


def _roughly(chain: Sequence[int], owners: Callable[[int], int], left: int, end: int) -> Depths:
    """What each of these holds at least, by a look at a few positions before `end`."""
    result: Depths = []
    step = max(1, -(-end // _ROUGH_LOOKS))
    for position in range(step, end + step, step):
        here = owners(chain[position]) & left if position < end else 0
        if gone := left & ~here:
            result.append((position - step + 1, gone))
        left = here
        if not left:
            break
    return result
