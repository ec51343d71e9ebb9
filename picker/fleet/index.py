"""Which worker holds which prefix: from index block to the set of slots that hold it, as bits of an int.

Agents publish a block only while all its ancestors are present, so for each worker presence along a prompt's chain is
monotone: held up to some depth, absent beyond. `depths` relies on it and bisects: log2(n) probes for each distinct
depth, whatever the number of workers, instead of one probe for each block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain as joined
from itertools import islice

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
