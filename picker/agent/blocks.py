"""What one worker holds: the engine's block events to index blocks.

The engine names its blocks by hashes of its own making. `BlockTable` follows them, computes Picker's prefix chain from
the token ids that events carry, and says which *index blocks* (`prompts.chain`, one for each 64 tokens) appear and
disappear. Five rules:

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
- **Blocks may have any size.** The chain goes on by 16 tokens, and what an engine's block leaves over is kept with it
  until the next one completes it: SGLang's pages of one token end in the same index blocks as vLLM's blocks of 16.

`python -m benchmarks.agent` measures bytes and time for each block.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace

from picker.agent.events import Cleared, Event, Removed, Stored
from picker.prompts import chain

_FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention"})
_STRIDE = chain.INDEX_TOKENS // chain.HASH_TOKENS


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
        "blocks",
        "born",
        "chain",
        "child",
        "copies",
        "key",
        "next",
        "parent",
        "pending",
        "previous",
        "reachable",
        "tokens",
    )

    def __init__(self, key: int, parent: _Node | None, link: _Link, born: int) -> None:
        self.key = key
        self.parent = parent
        self.chain, self.tokens, self.pending, self.blocks = link
        self.born = born
        self.copies = 0
        self.reachable = False
        self.child: _Node | None = None
        self.next: _Node | None = None
        self.previous: _Node | None = None


_Link = tuple[int | None, int, bytes, tuple[int, ...]]
"""The chain at a block's end: its last value (None: opaque), the number of tokens up to the end, those of them that
came after the last value, packed; and the index blocks that end in the block.
"""
_NOWHERE: _Link = (None, 0, b"", ())


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
        self._root = _Node(-1, None, _NOWHERE, -1)
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

    def _links(self, event: Stored, parent: _Node) -> list[_Link]:
        """Raises ValueError for something that is not a token id."""
        start = self._scope(event) if parent is self._root else parent.chain
        if start is None:
            self._counters.opaque += len(event.hashes)
            return [_NOWHERE] * len(event.hashes)
        clear = _blocks_before_opaque(event)
        opaque = len(event.hashes) - clear
        self._counters.opaque += opaque
        tokens = chain.pack(event.tokens[: clear * event.block_size])
        packed = parent.pending + chain.fold(tokens, _media(event, clear))
        return [*_cut(start, packed, clear, event.block_size, parent.tokens), *[_NOWHERE] * opaque]

    def _scope(self, event: Stored) -> int:
        return chain.scope(self._model, event.adapter, event.salt or _salt(event))

    def _hold(self, event: Stored, parent: _Node, links: list[_Link]) -> list[int]:
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


def _cut(start: int, packed: bytes, count: int, size: int, tokens: int) -> Iterator[_Link]:
    """The links of `count` engine blocks of `size` tokens each, the first of which follows `tokens` tokens.

    `packed`: their tokens, and before them those that the block before has left over after chain value `start`.
    """
    values = chain.extend_packed(start, packed)
    left_over = chain.token_count(packed) - count * size
    base = (tokens - left_over) // chain.HASH_TOKENS
    done = 0
    for end in range(left_over + size, left_over + count * size + 1, size):
        before, done = done, end // chain.HASH_TOKENS
        first = before + (_STRIDE - 1 - (base + before)) % _STRIDE
        pending = packed[chain.HASH_BYTES * done : chain.TOKEN_BYTES * end]
        yield values[done - 1] if done else start, tokens - left_over + end, pending, tuple(values[first:done:_STRIDE])


def _salt(event: Stored) -> str:
    """The salt of a request, which vLLM puts among the first block's extra keys, as a bare text."""
    if not event.hashes:
        return ""
    texts = [key for key in _other_keys(event, 0) if isinstance(key, str)]
    return texts[0] if len(texts) == 1 else ""


def _blocks_before_opaque(event: Stored) -> int:
    for position in range(len(event.hashes)):
        keys = _other_keys(event, position)
        others = [key for key in keys if not _is_medium(key)]
        is_salt = position == 0 and event.parent is None and len(others) == 1 and isinstance(others[0], str)
        if others and not is_salt:
            return position
    return len(event.hashes)


def _is_medium(key: object) -> bool:
    """An image's, an audio's or a video's identifier, and where it begins, in tokens from the block's start.

    With vLLM 0.32 it is among the keys of each block that it reaches into; below 0 it began in an earlier one.
    """
    return isinstance(key, list) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int


def _media(event: Stored, blocks: int) -> list[tuple[int, str]]:
    """Where media begin among the tokens of the first `blocks`, and their identifiers."""
    return [
        (position * event.block_size + key[1], key[0])
        for position in range(blocks if event.extra_keys else 0)
        for key in _other_keys(event, position)
        if isinstance(key, list) and _is_medium(key) and 0 <= key[1] < event.block_size
    ]


def _other_keys(event: Stored, position: int) -> list[object]:
    """Extra keys of a block without the adapter's name, which vLLM puts first and into every block."""
    keys = event.extra_keys[position] if event.extra_keys and position < len(event.extra_keys) else None
    if not keys:
        return []
    return keys[1:] if event.adapter and keys[0] == event.adapter else keys
