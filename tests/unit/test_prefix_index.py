"""The prefix index and the placed blocks against naive models."""

import math
import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.index import MOST_DEPTHS, Depths, PrefixIndex, depths
from picker.fleet.placed import PlacedBlocks

SLOTS = (0, 1, 7, 63, 64, 200)
slots = st.sampled_from(SLOTS)
# A block is the number that its path spells: 1, 12, 121, ... So every chain is prefix-closed and chains share heads.
paths = st.text("123", max_size=10)
blocks = st.integers(0, 2**64 - 1)


def chain_of(path: str) -> list[int]:
    return [int(path[:end]) for end in range(1, len(path) + 1)]


def is_closed(held: set[int]) -> bool:
    return all(block < 10 or block // 10 in held for block in held)


def slots_of(mask: int) -> set[int]:
    return {slot for slot in SLOTS if mask >> slot & 1}


def scan(chain: list[int], held: dict[int, set[int]]) -> dict[int, int]:
    """The naive depths: slot to number of leading blocks, one by one."""
    result = {}
    for slot, has in held.items():
        depth = next((at for at, block in enumerate(chain) if block not in has), len(chain))
        if depth:
            result[slot] = depth
    return result


def by_slot(found: Depths) -> dict[int, int]:
    listed = [(slot, depth) for depth, mask in found for slot in range(mask.bit_length()) if mask >> slot & 1]
    assert len(dict(listed)) == len(listed), "a slot is listed once, at its depth"
    return dict(listed)


operations = st.one_of(
    st.tuples(st.sampled_from(["store", "remove", "replace"]), slots, st.lists(st.integers(0, 20))),
    st.tuples(st.sampled_from(["clear", "forget", "trust", "distrust"]), slots, st.just([])),
)


@given(st.lists(operations, max_size=30))
def test_an_index_is_a_set_of_blocks_for_each_slot(script: list[tuple[str, int, list[int]]]) -> None:
    index, held, trusted = PrefixIndex(), {slot: set[int]() for slot in SLOTS}, set[int]()
    for operation, slot, given_blocks in script:
        match operation:
            case "store":
                index.store(slot, given_blocks)
                held[slot] |= set(given_blocks)
            case "remove":
                index.remove(slot, given_blocks)
                held[slot] -= set(given_blocks)
            case "replace":
                index.replace(slot, given_blocks)
                held[slot] = set(given_blocks)
            case "clear":
                index.clear(slot)
                held[slot] = set()
            case "forget":
                while not index.forget(slot, 3):
                    pass
                held[slot] = set()
            case _:
                index.trust(slot, operation == "trust")
                (trusted.add if operation == "trust" else trusted.discard)(slot)
    for block in range(21):
        assert slots_of(index.owners(block)) == {slot for slot in trusted if block in held[slot]}
    for slot in SLOTS:
        xor = 0
        for block in held[slot]:
            xor ^= block
        assert index.digest(slot) == (len(held[slot]), xor)
    assert len(index) == len(set().union(*held.values()))


@given(blocks, st.lists(blocks))
def test_a_digest_does_not_depend_on_order_or_repetition(block: int, more: list[int]) -> None:
    one, other = PrefixIndex(), PrefixIndex()
    one.store(0, [block, *more])
    other.store(0, [*reversed(more), block, block])
    assert one.digest(0) == other.digest(0)


def test_forgetting_takes_at_most_so_many_blocks_at_a_time() -> None:
    index = PrefixIndex()
    index.store(0, range(10))
    assert not index.forget(0, 4)
    assert index.digest(0)[0] == 6
    assert not index.forget(0, 4)
    assert index.forget(0, 4)
    assert len(index) == 0
    assert index.forget(0, 4)


@given(st.dictionaries(slots, st.lists(paths, max_size=4)), paths)
def test_depths_are_those_of_a_scan_block_by_block(stored: dict[int, list[str]], path: str) -> None:
    index, held = PrefixIndex(), dict[int, set[int]]()
    for slot, chains in stored.items():
        index.trust(slot, True)
        for stored_path in chains:
            index.store(slot, chain_of(stored_path))
            held.setdefault(slot, set()).update(chain_of(stored_path))
    found = depths(chain_of(path), index.owners)
    assert by_slot(found) == scan(chain_of(path), held)
    assert [depth for depth, _ in found] == sorted({depth for depth, _ in found}, reverse=True)


def owned_up_to(held: dict[int, int]) -> Callable[[int], int]:
    """Owners of block i of a chain that each slot holds up to a depth."""
    return lambda block: sum(1 << slot for slot, depth in held.items() if block < depth)


@given(st.integers(1, 10_000), st.dictionaries(st.integers(0, 150), st.integers(0, 10_000), max_size=40))
def test_any_number_of_slots_and_any_length(length: int, held: dict[int, int]) -> None:
    found = depths(range(length), owned_up_to(held), most=40)
    assert by_slot(found) == {slot: min(depth, length) for slot, depth in held.items() if depth}


@given(st.integers(1, 10_000), st.dictionaries(st.integers(0, 150), st.integers(1, 10_000), max_size=80))
def test_beyond_the_deepest_lengths_it_is_somewhat_less_than_what_is_held(length: int, held: dict[int, int]) -> None:
    found = by_slot(depths(range(length), owned_up_to(held), most=4))
    true = {slot: min(depth, length) for slot, depth in held.items()}
    deepest = sorted(set(true.values()), reverse=True)[:4]
    assert found.keys() == true.keys()
    for slot, depth in true.items():
        if depth in deepest:
            assert found[slot] == depth
        else:
            assert max(0, depth - length / 16 - 1) < found[slot] <= depth


@given(st.integers(1, 100_000), st.sets(st.integers(1, 100_000), max_size=100))
def test_looking_up_costs_a_logarithm_for_each_of_the_deepest_lengths(length: int, distinct: set[int]) -> None:
    count = 0
    owners = owned_up_to(dict(enumerate(distinct)))

    def counting(block: int) -> int:
        nonlocal count
        count += 1
        return owners(block)

    depths(range(length), counting)
    assert count <= 1 + MOST_DEPTHS * (math.log2(length) + 2) + 17


def test_a_cold_prompt_costs_one_look_up() -> None:
    asked: list[int] = []

    def nobody(block: int) -> int:
        asked.append(block)
        return 0

    assert depths(range(8192), nobody) == []
    assert asked == [0]
    assert depths([], nobody) == []


TTL_S, CAPACITY = 10.0, 8
placements = st.lists(st.tuples(slots, paths, st.floats(0, 6)), max_size=25)


def held_by(placed: PlacedBlocks, slot: int, seen: set[int]) -> set[int]:
    return {block for block in seen if placed.owners(block) >> slot & 1}


@given(placements)
def test_what_is_placed_stays_prefix_closed_and_bounded(script: list[tuple[int, str, float]]) -> None:
    placed, now, seen = PlacedBlocks(TTL_S, CAPACITY), 100.0, set[int]()
    for slot, path, wait_s in script:
        now += wait_s
        chain = chain_of(path)
        seen.update(chain)
        placed.place(slot, chain, now)
        assert set(chain[:CAPACITY]) <= held_by(placed, slot, seen)
        for each in SLOTS:
            assert len(held_by(placed, each, seen)) <= CAPACITY
            assert is_closed(held_by(placed, each, seen))


@given(placements)
def test_what_is_placed_expires_tail_first(script: list[tuple[int, str, float]]) -> None:
    placed, now = PlacedBlocks(TTL_S, blocks_per_slot=10_000), 100.0
    placed_at: dict[int, dict[int, float]] = {slot: {} for slot in SLOTS}
    for slot, path, wait_s in script:
        now += wait_s
        placed.place(slot, chain_of(path), now)
        placed_at[slot].update(dict.fromkeys(chain_of(path), now))
        placed.expire(now)
        for each, blocks_at in placed_at.items():
            held = held_by(placed, each, set(blocks_at))
            assert held == {block for block, at in blocks_at.items() if at > now - TTL_S}
            assert is_closed(held)


def test_expiry_that_stops_half_way_leaves_a_closed_set() -> None:
    placed = PlacedBlocks(TTL_S, blocks_per_slot=100)
    placed.place(3, chain_of("123123"), 0.0)
    placed.expire(TTL_S, limit=4)
    assert held_by(placed, 3, set(chain_of("123123"))) == {1, 12}


def test_a_chain_that_is_announced_is_not_expected_any_more_and_others_are() -> None:
    placed = PlacedBlocks(TTL_S, blocks_per_slot=100)
    for path in ("123", "1231", "122"):
        placed.place(3, chain_of(path), 0.0)
    placed.confirm(3, chain_of("123"))  # goes on to another end
    assert held_by(placed, 3, {1, 12, 122, 123, 1231}) == {1, 12, 122, 123, 1231}
    placed.confirm(3, chain_of("1231"))
    assert held_by(placed, 3, {1, 12, 122, 123, 1231}) == {1, 12, 122}
    placed.confirm(4, chain_of("122"))
    placed.confirm(3, chain_of("122"))
    assert held_by(placed, 3, {1, 12, 122, 123, 1231}) == set()


def test_a_chain_that_failed_leaves_what_was_there_before_it() -> None:
    placed = PlacedBlocks(TTL_S, blocks_per_slot=100)
    placed.place(3, chain_of("12"), 0.0)
    placed.place(3, chain_of("1231"), 1.0)
    placed.withdraw(3, chain_of("1231"), 2)
    assert held_by(placed, 3, {1, 12, 123, 1231}) == {1, 12}
    placed.withdraw(3, chain_of("12"), 0)
    placed.withdraw(3, [], 0)
    placed.withdraw(4, chain_of("1"), 0)
    assert held_by(placed, 3, {1, 12, 123, 1231}) == set()


def test_a_chain_that_failed_leaves_what_others_need() -> None:
    placed = PlacedBlocks(TTL_S, blocks_per_slot=100)
    for path in ("123", "1231"):
        placed.place(3, chain_of(path), 0.0)
    placed.withdraw(3, chain_of("123"), 0)
    assert held_by(placed, 3, {1, 12, 123, 1231}) == {1, 12, 123, 1231}
    placed.expire(TTL_S)
    assert held_by(placed, 3, {1, 12, 123, 1231}) == set()


@given(placements, st.lists(paths, max_size=5))
def test_what_is_announced_leaves_a_closed_set(script: list[tuple[int, str, float]], announced: list[str]) -> None:
    placed, now, seen = PlacedBlocks(TTL_S, CAPACITY), 100.0, set[int]()
    for slot, path, wait_s in script:
        now += wait_s
        seen.update(chain_of(path))
        placed.place(slot, chain_of(path), now)
        for each in announced:
            placed.confirm(slot, chain_of(each))
            assert is_closed(held_by(placed, slot, seen))


def test_a_slot_is_cleared_without_touching_others() -> None:
    placed = PlacedBlocks(TTL_S, blocks_per_slot=100)
    placed.place(1, [5, 6], 0.0)
    placed.place(64, [5], 0.0)
    placed.clear(1)
    placed.clear(1)
    assert (placed.owners(5), placed.owners(6)) == (1 << 64, 0)


def test_no_dict_grows_so_large_that_its_growing_would_hold_up_the_loop() -> None:
    """A dict of a million entries takes 50 ms or more to become a larger one."""
    index, rng = PrefixIndex(), random.Random(1)
    for _ in range(200):
        index.store(3, [rng.getrandbits(64) for _ in range(1000)])
    assert index.digest(3)[0] == len(index) == 200_000
    assert max(map(len, index._owners)) < 2_000
    assert max(map(len, index._held[3])) < 20_000


def test_a_slot_is_forgotten_in_parts() -> None:
    index, rng = PrefixIndex(), random.Random(1)
    blocks = {rng.getrandbits(64) for _ in range(1000)}
    index.store(1, blocks)
    index.store(2, blocks)
    steps = 1
    while not index.forget(1, 100):
        steps += 1
    assert steps == 10
    assert (index.digest(1), index.digest(2)[0], len(index)) == ((0, 0), 1000, 1000)


STEPS = (
    lambda placed, chain, now: placed.place(3, chain, now),
    lambda placed, chain, now: placed.place(4, chain, now),
    lambda placed, chain, now: placed.confirm(3, chain),
    lambda placed, chain, now: placed.withdraw(3, chain, len(chain) // 2),
    lambda placed, chain, now: placed.expire(now, limit=3),
)


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.lists(st.integers(0, 9), max_size=12)), max_size=40))
def test_chains_of_equal_hashes_confuse_but_do_not_stay(script) -> None:  # type: ignore[no-untyped-def]
    placed, now = PlacedBlocks(TTL_S, CAPACITY), 100.0
    for step, chain in script:
        now += 1.0
        step(placed, chain, now)
        assert len(held_by(placed, 3, set(range(10)))) <= CAPACITY
    placed.clear(3)
    placed.expire(now + 2 * TTL_S)
    assert repr(placed).startswith("<PlacedBlocks 0 blocks")
