"""The block table: what it publishes is what an engine can hit."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picker.agent.blocks import BlockTable, Delta
from picker.agent.events import Cleared, Event, Removed, Stored, decode
from picker.prompts import chain

DATA = Path(__file__).parents[1] / "data" / "kv"
MODEL = "tiny-llama"
PROMPT = [n * 7 % 2000 for n in range(512)]


def store(tokens: Sequence[int], size: int = 16, first: int = 0, **fields: Any) -> Stored:
    """The blocks of a prompt from number `first` on. Hash of a block: that of its prefix and size."""
    hashes = [hash((size, tuple(tokens[: end * size]))) % 2**64 for end in range(1, len(tokens) // size + 1)]
    parent = hashes[first - 1] if first else None
    fields = {"tokens": list(tokens[first * size : len(hashes) * size]), **fields}
    return Stored(hashes[first:], parent, block_size=size, **fields)


def index_blocks(tokens: Sequence[int], adapter: str = "", salt: str = "") -> list[int]:
    return chain.index_blocks(chain.scope(MODEL, adapter, salt), tokens)


def captured(name: str) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = {}
    for line in (DATA / name).read_text().splitlines():
        row = json.loads(line)
        events.setdefault(row["scenario"], []).extend(decode(bytes.fromhex(row["payload"])).events)
    return events


# -- one rule at a time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 4, 7, 16, 20, 32, 48, 60, 64, 96, 128])
def test_engine_blocks_of_any_size_give_the_same_index_blocks(size: int) -> None:
    table = BlockTable(MODEL)
    tokens = PROMPT[: 384 // size * size]
    assert table.apply(store(tokens, size)) == Delta(stored=index_blocks(tokens))


@pytest.mark.parametrize("size", [1, 4, 7, 16, 20, 32, 60, 64, 128])
def test_a_store_that_comes_in_pieces_gives_the_same_blocks(size: int) -> None:
    table = BlockTable(MODEL)
    stored: list[int] = []
    for first in range(512 // size):
        stored += table.apply(store(PROMPT[: (first + 1) * size], size, first)).stored
    assert stored == index_blocks(PROMPT[: 512 // size * size])


def test_a_page_of_one_token_takes_its_index_block_along() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:200], 1)
    blocks = index_blocks(PROMPT[:200])
    assert table.apply(event).stored == blocks
    assert table.apply(Removed(event.hashes[130:131])) == Delta(removed=blocks[2:])
    assert table.apply(Removed(event.hashes[:1])) == Delta(removed=blocks[1::-1])


def test_blocks_of_several_sizes_may_follow_one_another() -> None:
    table = BlockTable(MODEL)
    assert table.apply(Stored([1], None, PROMPT[:50], 50)) == Delta()
    assert table.apply(Stored([2, 3], 1, PROMPT[50:64], 7)) == Delta(stored=index_blocks(PROMPT[:64]))
    assert table.apply(Stored([4], 3, PROMPT[64:130], 66)) == Delta(stored=index_blocks(PROMPT[:130])[1:])


def test_a_prefix_that_is_announced_again_because_it_was_hit_is_no_new_copy() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:256], 64)
    table.apply(event)
    table.begin_step()
    more = store(PROMPT[:320], 64)
    assert table.apply(more) == Delta(stored=index_blocks(PROMPT[:320])[4:])
    for value in reversed(more.hashes):
        table.apply(Removed([value]))
    assert (table.published, table.statistics().nodes) == (set(), 0)


def test_a_block_that_was_computed_again_is_a_new_copy() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:128], 64)
    table.apply(event)
    table.apply(event)  # in the same step: two equal prompts
    table.begin_step()
    table.apply(store(PROMPT[:128], 64, 1))  # the last block of a prompt that is cached whole
    assert table.apply(Removed(event.hashes)) == Delta()
    assert table.apply(Removed(event.hashes[1:])) == Delta()
    assert table.apply(Removed(event.hashes[1:])).removed == index_blocks(PROMPT[:128])[1:]


def test_a_block_with_two_copies_stays_until_both_are_gone() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:64], 64)
    assert table.apply(event).stored
    assert table.apply(event) == Delta()
    assert table.apply(Removed(event.hashes)) == Delta()
    assert table.apply(Removed(event.hashes)) == Delta(removed=index_blocks(PROMPT[:64]))
    assert table.statistics().nodes == 0


def test_a_removed_block_takes_its_descendants_along_and_brings_them_back() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:256], 64)
    blocks = index_blocks(PROMPT[:256])
    table.apply(event)
    assert table.apply(Removed(event.hashes[1:2])) == Delta(removed=blocks[:0:-1])
    assert table.published == set(blocks[:1])
    assert table.apply(store(PROMPT[:128], 64, 1)) == Delta(stored=blocks[1:])


def test_descendants_of_an_absent_block_are_held_back() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:128], 64)
    table.apply(event)
    table.apply(Removed(event.hashes[:1]))
    assert table.apply(store(PROMPT[:256], 64, 2)) == Delta()
    assert table.apply(store(PROMPT[:64], 64)).stored == index_blocks(PROMPT[:256])


def test_a_removed_block_without_descendants_is_forgotten_with_its_absent_ancestors() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT, 64)
    table.apply(event)
    for value in event.hashes:
        table.apply(Removed([value]))
    assert table.statistics().nodes == 0


@pytest.mark.parametrize("order", list(itertools.permutations([2, 3, 4])))
def test_siblings_may_go_in_any_order(order: tuple[int, ...]) -> None:
    table = BlockTable(MODEL)
    table.apply(Stored([1], None, PROMPT[:64], 64))
    for child in (2, 3, 4):
        table.apply(Stored([child], 1, PROMPT[child * 64 : (child + 1) * 64], 64))
    table.apply(Removed([1]))
    for remaining, child in zip((3, 2, 0), order, strict=True):
        table.apply(Removed([child]))
        assert table.statistics().nodes == remaining


def test_a_block_with_an_unknown_parent_is_dropped_and_counted() -> None:
    table = BlockTable(MODEL)
    assert table.apply(store(PROMPT[:256], 64, 2)) == Delta()
    assert table.statistics().nodes == 0
    assert table.statistics().counters.orphaned == 2


def test_two_engine_hashes_of_one_prefix_share_an_index_block() -> None:
    table = BlockTable(MODEL)
    one = Stored([1], None, PROMPT[:64], 64, "sql")
    other = Stored([2], None, PROMPT[:64], 64, "sql")
    blocks = index_blocks(PROMPT[:64], "sql")
    assert table.apply(one) == Delta(stored=blocks)
    assert table.apply(other) == Delta()
    assert table.apply(Removed([1])) == Delta()
    assert table.apply(Removed([2])) == Delta(removed=blocks)


def test_the_same_hash_in_two_groups_is_two_blocks() -> None:
    table = BlockTable(MODEL)
    for group in (0, 1):
        table.apply(Stored([1], None, PROMPT[:64], 64, group=group))
    assert table.apply(Removed([1], group=1)) == Delta()
    assert table.apply(Removed([1], group=0)).removed == index_blocks(PROMPT[:64])


def test_adapter_and_salt_are_scopes_of_their_own() -> None:
    table = BlockTable(MODEL)
    cases = [("", "", None), ("sql", "", ["sql"]), ("", "t", ["t"]), ("sql", "t", ["sql", "t"]), ("t", "t", ["t", "t"])]
    for number, (adapter, salt, keys) in enumerate(cases):
        following = [adapter] if adapter else None
        event = Stored([number, 100 + number], None, PROMPT[:128], 64, adapter, extra_keys=[keys, following])
        assert table.apply(event).stored == index_blocks(PROMPT[:128], adapter, salt)
    assert len(table.published) == 2 * len(cases)


def test_a_later_event_continues_the_chain_of_its_salt() -> None:
    table = BlockTable(MODEL)
    table.apply(Stored([1], None, PROMPT[:64], 64, extra_keys=[["t"]]))
    event = Stored([2], 1, PROMPT[64:128], 64, extra_keys=[None])
    assert table.apply(event).stored == index_blocks(PROMPT[:128], salt="t")[1:]


@pytest.mark.parametrize(
    "keys",
    [[["img", "3"]], [b"digest"], ["a", "b"], ["bare text"], ["sql", ["img", 3, 4]]],
    ids=["image nowhere", "embedding", "two texts", "text after the first block", "something else of three"],
)
def test_a_block_with_other_extra_keys_is_opaque_and_so_are_its_descendants(keys: list[Any]) -> None:
    table = BlockTable(MODEL)
    event = Stored([1, 2, 3], None, PROMPT[:192], 64, "sql", extra_keys=[["sql"], keys, ["sql"]])
    assert table.apply(event).stored == index_blocks(PROMPT[:64], "sql")
    assert table.apply(Stored([4], 3, PROMPT[:64], 64, "sql", extra_keys=[["sql"]])) == Delta()
    assert table.statistics().counters.opaque == 3
    assert table.statistics().counters.orphaned == 0


MEDIA = [(10, "cat"), (70, "dog"), (200, "cat")]


def keys_of(size: int, media: Sequence[tuple[int, str]], length: int, *before: Any) -> list[list[Any]]:
    """As vLLM puts them into events: of each medium that reaches into a block, identifier and beginning from there."""
    return [
        [*before, *([name, place - start] for place, name in media if place < start + size and place + length > start)]
        for start in range(0, 512, size)
    ]


@pytest.mark.parametrize("size", [16, 20, 32, 64, 128])
@pytest.mark.parametrize("before", [(), ("sql",)], ids=["base model", "adapter"])
def test_media_are_folded_in_where_they_begin(size: int, before: tuple[str, ...]) -> None:
    adapter = "".join(before)
    tokens = PROMPT[: 512 // size * size]
    wanted = chain.index_blocks(chain.scope(MODEL, adapter), tokens, MEDIA)
    table = BlockTable(MODEL)
    keys = keys_of(size, MEDIA, 40, *before)[: len(tokens) // size]
    whole = store(tokens, size, adapter=adapter, extra_keys=keys)
    assert table.apply(whole).stored == wanted != index_blocks(tokens, adapter)
    in_pieces = BlockTable(MODEL)
    stored: list[int] = []
    for first in range(len(tokens) // size):
        parent = whole.hashes[first - 1] if first else None
        part = tokens[first * size : (first + 1) * size]
        event = Stored([whole.hashes[first]], parent, part, size, adapter, extra_keys=[keys[first]])
        stored += in_pieces.apply(event).stored
    assert stored == wanted
    assert not table.statistics().counters.opaque


def test_prompts_that_differ_in_an_image_part_where_it_begins() -> None:
    chains = [chain.index_blocks(chain.scope(MODEL), PROMPT, [(130, name)]) for name in ("cat", "dog")]
    shared = sum(left == right for left, right in zip(*chains, strict=True))
    assert shared == 2
    assert chains[0] != chain.index_blocks(chain.scope(MODEL), PROMPT, [(131, "cat")])


def test_a_salt_beside_an_image_is_a_salt() -> None:
    event = Stored([1, 2], None, PROMPT[:128], 64, extra_keys=[["tenant", ["cat", 3]], [["cat", -61]]])
    wanted = chain.index_blocks(chain.scope(MODEL, salt="tenant"), PROMPT[:128], [(3, "cat")])
    assert BlockTable(MODEL).apply(event).stored == wanted


SKIPPED = {
    "other_medium": store(PROMPT[:64], medium="CPU"),
    "other_attention": store(PROMPT[:64], kind="sliding_window"),
    "bad_block_size": Stored([1], None, [], 0),
    "bad_tokens": Stored([1, 2], None, PROMPT[:33], 16),
}


@pytest.mark.parametrize(("reason", "event"), SKIPPED.items(), ids=SKIPPED.keys())
def test_an_event_that_cannot_be_indexed_is_skipped_and_counted(reason: str, event: Stored) -> None:
    table = BlockTable(MODEL)
    assert table.apply(event) == Delta()
    assert getattr(table.statistics().counters, reason) == len(event.hashes)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_is_no_token_id_is_skipped_and_counted(token: int) -> None:
    table = BlockTable(MODEL)
    assert table.apply(store([token] * 64)) == Delta()
    assert table.statistics().counters.bad_tokens == 4


def test_an_empty_event_changes_nothing() -> None:
    assert BlockTable(MODEL).apply(Stored([], None, [], 16)) == Delta()


def test_a_removal_on_another_medium_is_not_one_on_the_gpu() -> None:
    table = BlockTable(MODEL)
    event = store(PROMPT[:64], medium="GPU")
    table.apply(event)
    assert table.apply(Removed(event.hashes, "CPU")) == Delta()
    assert table.published


def test_a_removal_of_an_unknown_block_is_counted() -> None:
    table = BlockTable(MODEL)
    assert table.apply(Removed([1])) == Delta()
    assert table.statistics().counters.unknown_removed == 1


def test_blocks_beyond_the_bound_are_refused_and_the_published_set_stays_closed() -> None:
    table = BlockTable(MODEL, max_nodes=3)
    assert table.apply(store(PROMPT[:256], 64)).stored == index_blocks(PROMPT[:192])
    assert table.apply(store(PROMPT[:320], 64, 4)) == Delta()
    assert table.statistics().counters.refused == 1
    assert table.statistics().counters.orphaned == 1


def test_cleared_forgets_everything() -> None:
    table = BlockTable(MODEL)
    table.apply(store(PROMPT))
    assert table.apply(Cleared()) == Delta(cleared=True)
    assert not table.published
    assert table.apply(store(PROMPT)).stored == index_blocks(PROMPT)


# -- captured from a real engine ---------------------------------------------------------------------------------


def test_prompts_that_vllm_announced_are_published_as_their_chain() -> None:
    events = captured("vllm_main.jsonl")
    table = BlockTable(MODEL)
    for scenario in events.values():
        for event in scenario:
            table.apply(event)
    (cold,) = [event for event in events["17_first_request_after_reset"] if isinstance(event, Stored)]
    assert table.published == set(index_blocks(cold.tokens)) != set()


def test_a_prompt_that_vllm_extended_continues_its_chain() -> None:
    events = captured("vllm_main.jsonl")
    table = BlockTable(MODEL)
    (_, cold), (extension,) = events["01_cold_100tok_max1"], events["03_extend_200tok"]
    assert isinstance(cold, Stored) and isinstance(extension, Stored)
    table.apply(cold)
    table.apply(extension)
    assert table.published == set(index_blocks(cold.tokens + extension.tokens))
    assert len(table.published) == 3


def test_a_prompt_that_vllm_cached_while_decoding_is_published_block_by_block() -> None:
    growth = list(captured("vllm_main.jsonl")["07_decode_growth_prompt60_gen80"])
    table = BlockTable(MODEL)
    tokens: list[int] = []
    for event in growth:
        assert isinstance(event, Stored)
        table.apply(event)
        tokens += event.tokens
    assert table.published == set(index_blocks(tokens))


def test_what_is_published_through_vllms_evictions_is_what_it_still_holds() -> None:
    table = BlockTable(MODEL)
    copies: Counter[int] = Counter()
    prefixes: dict[int | None, list[int]] = {None: []}
    published: set[int] = set()
    evictions = 0
    for events in captured("vllm_evict.jsonl").values():
        for event in events:
            published = follow(published, table.apply(event))
            if isinstance(event, Removed):
                copies.subtract(event.hashes)
                evictions += 1
            elif isinstance(event, Stored):
                copies.update(event.hashes)
                for position, value in enumerate(event.hashes):
                    parent = event.hashes[position - 1] if position else event.parent
                    prefixes[value] = prefixes[parent] + event.tokens[position * 32 : (position + 1) * 32]
            assert min(copies.values(), default=0) >= 0
            # vLLM's cache is closed by itself: what it holds, it can hit.
            assert published == {block for value in +copies for block in index_blocks(prefixes[value])}
    assert evictions > 100
    counters = table.statistics().counters
    assert counters.orphaned == counters.unknown_removed == 0


def test_copies_are_counted_as_vllm_has_them_and_a_full_report_makes_none() -> None:
    table = BlockTable(MODEL)
    for scenario, events in captured("vllm_main.jsonl").items():
        if scenario.startswith("17"):
            break
        for event in events:
            table.begin_step()
            table.apply(event)
    events = captured("vllm_main.jsonl")
    (repeated,) = events["06_exact_multiple_96tok_repeat(last block recomputed?)"]
    reported = events["11_full_report_mode"][0]
    assert isinstance(repeated, Stored) and isinstance(reported, Stored)
    held = len(table.published)
    assert table.apply(Removed(repeated.hashes)) == Delta(), "the prompt's last block was computed twice"
    assert table.published and len(table.published) == held
    gone = table.apply(Removed(reported.hashes[::-1])).removed
    assert len(table.published) == held - len(gone) < held, "one removal takes what was reported again"


def test_adapters_and_salts_that_vllm_announced_do_not_collide_with_the_base() -> None:
    table = BlockTable(MODEL)
    (base, sql, other, salted) = [event for events in captured("vllm_lora.jsonl").values() for event in events]
    assert isinstance(base, Stored) and isinstance(salted, Stored)
    expected = [("", ""), ("lora-a", ""), ("lora-b", ""), ("lora-a", "s1")]
    for event, (adapter, salt) in zip((base, sql, other, salted), expected, strict=True):
        assert isinstance(event, Stored)
        assert table.apply(event).stored == index_blocks(event.tokens, adapter, salt) != []
    (salt_event,) = captured("vllm_main.jsonl")["09_cache_salt"]
    assert isinstance(salt_event, Stored)
    assert table.apply(salt_event).stored == index_blocks(salt_event.tokens, salt="tenant-a")


# -- against a model ---------------------------------------------------------------------------------------------


def follow(published: set[int], delta: Delta) -> set[int]:
    """Applies a delta as a picker does, and insists that it says nothing twice."""
    if delta.cleared:
        return set()
    assert len(set(delta.stored)) == len(delta.stored) and not published & set(delta.stored)
    assert len(set(delta.removed)) == len(delta.removed) and published >= set(delta.removed)
    return (published | set(delta.stored)) - set(delta.removed)


Path_ = tuple[int, ...]
# Mostly blocks that are index blocks, and few of them: so that evictions and returns meet.
SIZES = [64, 64, 64, 64, 16, 24, 32, 40, 128]


class Naive(RuleBasedStateMachine):
    """Engines with blocks of 16 to 128 tokens, multiples of 16 or not, prompts from a two-way tree, evictions anywhere.

    The model knows, of each block, its path in the tree and its copies; it derives what is published from scratch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.table = BlockTable(MODEL)
        self.published: set[int] = set()
        self.copies: dict[tuple[int, Path_], int] = {}  # (block size, path) -> copies; absent ancestors stay with 0

    def value(self, size: int, path: Path_) -> int:
        return hash((size, path)) % 2**64

    def tokens(self, size: int, path: Path_) -> list[int]:
        return [token for choice in path for token in [choice] * size]

    def feed(self, event: Event) -> None:
        self.published = follow(self.published, self.table.apply(event))

    @rule(
        size=st.sampled_from(SIZES),
        path=st.lists(st.sampled_from([0, 0, 1]), min_size=1, max_size=5).map(tuple),
        first=st.integers(0, 4),
        cut=st.integers(1, 4),
    )
    def stores(self, size: int, path: Path_, first: int, cut: int) -> None:
        first = min(first, len(path) - 1)
        middle = min(first + cut, len(path))
        for start, end in ((first, middle), (middle, len(path))):
            if start < end:
                self.store_run(size, path, start, end)

    def store_run(self, size: int, path: Path_, start: int, end: int) -> None:
        hashes = [self.value(size, path[:length]) for length in range(start + 1, end + 1)]
        parent = self.value(size, path[:start]) if start else None
        self.feed(Stored(hashes, parent, self.tokens(size, path[start:end]), size))
        if start == 0 or (size, path[:start]) in self.copies:
            for length in range(start + 1, end + 1):
                self.copies[size, path[:length]] = self.copies.get((size, path[:length]), 0) + 1

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def removes(self, data: st.DataObject) -> None:
        self.remove(*data.draw(st.sampled_from(sorted(self.copies))))

    @precondition(lambda self: self.copies)
    @rule(data=st.data())
    def removes_most(self, data: st.DataObject) -> None:
        for key in data.draw(st.permutations(sorted(self.copies))):
            if key in self.copies and data.draw(st.integers(0, 3)):
                self.remove(*key)

    def remove(self, size: int, path: Path_) -> None:
        self.feed(Removed([self.value(size, path)]))
        self.copies[size, path] = max(0, self.copies[size, path] - 1)
        self.forget()

    def forget(self) -> None:
        """A block without copies is known as long as a known block follows it."""
        parents = {(size, path[:-1]) for size, path in self.copies}
        gone = [key for key, copies in self.copies.items() if not copies and key not in parents]
        for key in gone:
            del self.copies[key]
        if gone:
            self.forget()

    @rule()
    def stray_removal(self) -> None:
        self.feed(Removed([12345]))

    @rule(chance=st.integers(0, 5))
    def clears(self, chance: int) -> None:
        if chance == 0:
            self.feed(Cleared())
            self.copies.clear()

    @invariant()
    def published_is_what_can_be_reached(self) -> None:
        expected: set[int] = set()
        for size, path in self.copies:
            if all(self.copies.get((size, path[:length]), 0) for length in range(1, len(path) + 1)):
                expected.update(index_blocks(self.tokens(size, path)))
        assert self.published == self.table.published == expected
        assert self.table.statistics().nodes == len(self.copies)


TestAgainstANaiveModel = Naive.TestCase
TestAgainstANaiveModel.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
