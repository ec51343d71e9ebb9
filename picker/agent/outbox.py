"""What one worker holds, and which changes of it are still to be published. No I/O, no clock.

The set is the truth; the pending changes are a shortcut. Whenever a change may not have arrived, a snapshot of the set
makes up for it, so pending changes may be dropped at any time as long as their sequence numbers are used up: readers
then see a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from picker.redisview.records import MAX_EVENT_BLOCKS, KvEvent, KvOp, Snapshot, StreamId


class Outbox:
    """One epoch's published blocks. `max_pending`: more blocks than these are not kept waiting but dropped."""

    def __init__(self, epoch: int, max_pending: int):
        self.epoch = epoch
        self.seq = 0
        """Number of the last event that was drawn, or given up."""
        self.needs_snapshot = True
        """Whether events may be missing from the stream."""
        self.pending_blocks = 0
        self._max_pending = max_pending
        self._pending: list[tuple[KvOp, list[int]]] = []
        # A dict for its order: parents stay before children, and so a snapshot read in part has no holes.
        self._held: dict[int, None] = {}
        self._xor = 0
        self._snapshot_seq = -1

    def __repr__(self) -> str:
        return f"<Outbox seq {self.seq}, {len(self)} blocks, {self.pending_blocks} pending>"

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_pending(self) -> bool:
        """Whether there is something to draw."""
        return bool(self._pending)

    @property
    def xor(self) -> int:
        """Exclusive-or of all blocks."""
        return self._xor

    @property
    def has_changed(self) -> bool:
        """Whether there were events since the last snapshot."""
        return self.seq != self._snapshot_seq

    def store(self, blocks: Iterable[int]) -> None:
        """These blocks are present now."""
        new = [block for block in dict.fromkeys(blocks) if block not in self._held]
        self._held.update(dict.fromkeys(new))
        self._note(KvOp.STORE, new)

    def remove(self, blocks: Iterable[int]) -> None:
        """These blocks are absent now."""
        old = [block for block in dict.fromkeys(blocks) if block in self._held]
        for block in old:
            del self._held[block]
        self._note(KvOp.REMOVE, old)

    def clear(self) -> None:
        """All blocks are absent now. What was pending does not matter any more."""
        self._held.clear()
        self._xor = 0
        self._pending = [(KvOp.CLEAR, [])]
        self.pending_blocks = 0

    def draw(self) -> list[KvEvent]:
        """All pending changes as numbered events; from here on they count as published."""
        pending, self._pending, self.pending_blocks = self._pending, [], 0
        return [self._numbered(op, part) for op, blocks in pending for part in _parts(blocks)]

    def snapshot(self, after: StreamId) -> Snapshot:
        """All blocks as of the events drawn so far. `after`: an id that precedes all events to come."""
        self.needs_snapshot = False
        self._snapshot_seq = self.seq
        return Snapshot(self.epoch, self.seq, after, list(self._held))

    def doubt(self) -> None:
        """What was drawn last may not have arrived."""
        self.needs_snapshot = True

    def _note(self, op: KvOp, blocks: list[int]) -> None:
        for block in blocks:
            self._xor ^= block
        if not blocks:
            return
        if self._pending and self._pending[-1][0] is op:
            self._pending[-1][1].extend(blocks)
        else:
            self._pending.append((op, blocks))
        self.pending_blocks += len(blocks)
        if self.pending_blocks > self._max_pending:
            self._give_up()

    def _give_up(self) -> None:
        self._pending, self.pending_blocks = [], 0
        self.seq += 1
        self.needs_snapshot = True

    def _numbered(self, op: KvOp, blocks: Sequence[int]) -> KvEvent:
        self.seq += 1
        return KvEvent(self.epoch, self.seq, op, tuple(blocks))


def _parts(blocks: list[int]) -> Iterable[list[int]]:
    return [blocks[at : at + MAX_EVENT_BLOCKS] for at in range(0, len(blocks), MAX_EVENT_BLOCKS)] or [blocks]
