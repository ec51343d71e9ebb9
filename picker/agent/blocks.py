"""What one worker holds: the engine's block events to index blocks.

The engine names its blocks by hashes of its own making. `BlockTable` follows them, knows where each stands in Picker's
prefix chain (`links`), and says which *index blocks* (`prompts.chain`, one for each 64 tokens) appear and disappear.
Four rules:

- **Copies are counted.** Two requests that compute the same block at once leave two copies; the engine announces it
  twice and removes it twice (vLLM 0.32), and it can be hit until both are gone. What a request with vLLM's
  kv_cache_report_mode=full announces again, from the prompt's beginning, is no new copy: it is known by that all of
  it beyond one block stood there when the engine's step began, for then the engine had no reason to compute it.
- **The published set is closed.** An index block is published while all blocks before it are present, because an engine
  can only hit what it can reach. A removed block takes its descendants along; they return when it returns. A removed
  block is remembered as long as it has descendants.
- **What cannot be known is not published.** A block whose parent was never seen has no chain value and is dropped, as
  are its descendants. A block whose hash took in more than tokens, adapter, cache salt and the media that begin in it
  (prompt embeddings) is opaque, as are its descendants.
- **Only what a GPU can hit at once.** Events of other media are skipped: their tiers evict on their own, so that a
  block on disk says nothing about its ancestors, and loading one costs a time that is not known here. Of hybrid models
  only groups with full attention count.

`python -m benchmarks.agent` measures bytes and time for each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

from picker.agent.events import Cleared, Event, Removed, Stored
from picker.agent.links import NOWHERE, Link, links_of, scope

_FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})


@dataclass(frozen=True, slots=True)
class Delta:
    """Index blocks that appeared, ancestors first, and that disappeared, descendants first; or all did (`cleared`)."""

    stored: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    cleared: bool = False


@dataclass(slots=True)
class Counters:
    """Engine blocks, since the table was made. All but `opaque` and the first two hint at something to look into."""

    other_medium: int = 0
    other_attention: int = 0
    opaque: int = 0
    orphaned: int = 0
    """Stored under a parent that was never seen."""
    unknown_removed: int = 0
    refused: int = 0
    """Beyond the table's bound."""
    bad_block_size: int = 0
    bad_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """`nodes` are the engine's blocks, removed ancestors included; `published` are index blocks."""

    nodes: int
    published: int
    counters: Counters


class _Node:
    """A block of the engine. Children are a doubly linked list: a set would take more memory than all the rest."""

    __slots__ = (
        "blocks", "born", "chain", "child", "copies", "key", "next", "parent", "pending", "previous", "reachable",
        "tokens",
    )  # fmt: skip

    def __init__(self, key: int, parent: _Node | None, link: Link, born: int) -> None:
        self.key = key
        self.parent = parent
        self.chain, self.tokens, self.pending, self.blocks = link
        self.born = born
        self.copies = 0
        self.reachable = False
        self.child: _Node | None = None
        self.next: _Node | None = None
        self.previous: _Node | None = None


class BlockTable:
    """The blocks of one worker that serves `model`. Pure: events in, deltas out.

    Holds at most `max_nodes` blocks. A block beyond that is refused, and with it, being unknown, its descendants: what
    is published stays closed. An engine cannot hold more blocks than it has, so the bound is for a broken one.
    """

    def __init__(self, model: str, max_nodes: int = 1_000_000) -> None:
        self._model = model
        self._max_nodes = max_nodes
        self._counters = Counters()
        self._step = 0
        self._start()

    def __repr__(self) -> str:
        return f"<BlockTable {self._model}: {len(self._nodes)} nodes, {len(self._carriers)} published>"

    @property
    def published(self) -> Set[int]:
        """A live view of the index blocks."""
        return self._carriers.keys()

    def statistics(self) -> Statistics:
        """A copy."""
        return Statistics(len(self._nodes), len(self._carriers), replace(self._counters))

    def begin_step(self) -> None:
        """The events that follow are of another engine step."""
        self._step += 1

    def apply(self, event: Event) -> Delta:
        """What one event changed."""
        match event:
            case Stored():
                return Delta(stored=self._store(event))
            case Removed():
                return Delta(removed=self._remove(event))
            case Cleared():
                return self.clear()

    def clear(self) -> Delta:
        """Forgets all blocks."""
        self._start()
        return Delta(cleared=True)

    def _start(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._carriers: dict[int, int] = {}  # index block -> reachable nodes that end or pass there
        self._root = _Node(-1, None, NOWHERE, -1)
        self._root.copies = 1
        self._root.reachable = True

    # -- store ---------------------------------------------------------------------------------------------------

    def _store(self, event: Stored) -> list[int]:
        if not self._is_indexable(event):
            return []
        parent = self._root if event.parent is None else self._nodes.get(_key(event.group, event.parent))
        if parent is None:
            self._counters.orphaned += len(event.hashes)
            return []
        try:
            links = self._links(event, parent)
        except ValueError:
            self._counters.bad_tokens += len(event.hashes)
            return []
        return self._hold(event, parent, links)

    def _is_indexable(self, event: Stored) -> bool:
        blocks, size = len(event.hashes), event.block_size
        if not _is_gpu(event.medium):
            self._counters.other_medium += blocks
        elif event.kind not in _FULL_ATTENTION:
            self._counters.other_attention += blocks
        elif size <= 0:
            self._counters.bad_block_size += blocks
        elif len(event.tokens) != blocks * size:
            self._counters.bad_tokens += blocks
        else:
            return True
        return False

    def _links(self, event: Stored, parent: _Node) -> list[Link]:
        """Raises ValueError for something that is not a token id."""
        start = scope(self._model, event) if parent is self._root else parent.chain
        found = links_of(event, start, parent.tokens, parent.pending)
        self._counters.opaque += found.count(NOWHERE)
        return found

    def _hold(self, event: Stored, parent: _Node, links: list[Link]) -> list[int]:
        stored: list[int] = []
        is_repeat = self._is_repeat(event)
        for position, (value, link) in enumerate(zip(event.hashes, links, strict=True)):
            node = self._nodes.get(_key(event.group, value))
            if node is None:
                if len(self._nodes) >= self._max_nodes:
                    self._counters.refused += len(event.hashes) - position
                    break
                node = self._add(_Node(_key(event.group, value), parent, link, self._step), parent)
            if not (is_repeat and self._stood_before(node)):
                node.copies += 1
                if node.copies == 1:
                    node.born = self._step
                    self._publish(node, stored)
            parent = node
        return stored

    def _is_repeat(self, event: Stored) -> bool:
        """Whether this tells of a prefix that was hit. One block alone may have been computed again: the last one of a
        prompt always is.
        """
        if event.parent is not None or len(event.hashes) < 2:
            return False
        first = (self._nodes.get(_key(event.group, value)) for value in event.hashes[:2])
        return all(node is not None and self._stood_before(node) for node in first)

    def _stood_before(self, node: _Node) -> bool:
        return node.copies > 0 and node.born < self._step

    def _add(self, node: _Node, parent: _Node) -> _Node:
        self._nodes[node.key] = node
        node.next = parent.child
        if node.next is not None:
            node.next.previous = node
        parent.child = node
        return node

    def _publish(self, node: _Node, stored: list[int]) -> None:
        for reached in self._subtree(node, reachable=True):
            reached.reachable = True
            for block in reached.blocks:
                carriers = self._carriers.get(block, 0)
                self._carriers[block] = carriers + 1
                if not carriers:
                    stored.append(block)

    # -- remove --------------------------------------------------------------------------------------------------

    def _remove(self, event: Removed) -> list[int]:
        removed: list[int] = []
        if not _is_gpu(event.medium):
            self._counters.other_medium += len(event.hashes)
            return removed
        for value in event.hashes:
            node = self._nodes.get(_key(event.group, value))
            if node is None or not node.copies:
                self._counters.unknown_removed += 1
                continue
            node.copies -= 1
            if not node.copies:
                self._withdraw(node, removed)
                self._prune(node)
        return removed

    def _withdraw(self, node: _Node, removed: list[int]) -> None:
        for lost in reversed(list(self._subtree(node, reachable=False))):
            lost.reachable = False
            for block in reversed(lost.blocks):
                self._carriers[block] -= 1
                if not self._carriers[block]:
                    del self._carriers[block]
                    removed.append(block)

    def _prune(self, node: _Node) -> None:
        """Forgets a removed block that nothing hangs on, and what only it kept in memory."""
        while node.parent is not None and not node.copies and node.child is None:
            del self._nodes[node.key]
            _unlink(node, node.parent)
            node = node.parent

    def _subtree(self, node: _Node, *, reachable: bool) -> Iterator[_Node]:
        """`node` and below, ancestors first, as far as reachability changes to `reachable`."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.reachable is not reachable and (not reachable or _can_be_reached(node)):
                yield node
                child = node.child
                while child is not None:
                    waiting.append(child)
                    child = child.next


def _key(group: int, value: int) -> int:
    # One integer instead of a pair: 64 bytes less a block.
    return group << 64 | value


def _is_gpu(medium: str | None) -> bool:
    return medium is None or medium.upper() == "GPU"


def _can_be_reached(node: _Node) -> bool:
    return node.copies > 0 and node.chain is not None and node.parent is not None and node.parent.reachable


def _unlink(node: _Node, parent: _Node) -> None:
    if node.previous is None:
        parent.child = node.next
    else:
        node.previous.next = node.next
    if node.next is not None:
        node.next.previous = node.previous
