"""The view: workers come and go, slots are used again only when nothing of the old worker is left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.view import STALE_AFTER_S, View
from tests.unit.fleets import Load, Worker, endpoint, fleet, slot_at


def test_a_worker_is_known_by_its_epoch() -> None:
    view = View()
    slot = view.admit(Worker("a", epoch=3), now=0.0)
    assert view.slot_of("a", 3) == slot
    assert view.slot_of("a", 2) is None
    assert view.slot_of("b", 3) is None
    assert list(view.slots()) == [slot]


def test_a_restart_takes_another_slot_and_ends_the_old_one() -> None:
    view = View()
    old = view.admit(Worker("a", epoch=1), now=0.0)
    view.index.trust(old, True)
    view.index.store(old, [1, 2])
    new = view.admit(Worker("a", epoch=2), now=1.0)
    assert new != old
    assert (view.slot_of("a", 1), view.slot_of("a", 2)) == (None, new)
    assert (view.known[old], view.ready[old]) == (False, False)
    assert view.hit_blocks([1, 2]).max() == 0


def test_a_slot_is_used_again_only_when_its_blocks_are_forgotten() -> None:
    view = View(capacity=2)
    old = view.admit(Worker("a"), now=0.0)
    view.index.store(old, range(12_000))
    view.retire(old)
    reused = []
    for epoch in range(2, 20):
        slot = view.admit(Worker("b", epoch=epoch), now=0.0)
        if slot == old:
            reused.append(view.index.digest(old)[0])
            break
        view.sweep(now=0.0)
    assert reused == [0]


def test_a_slot_is_not_used_again_while_a_booking_of_it_is_open() -> None:
    view = View(capacity=2)
    old = view.admit(Worker("a"), now=0.0)
    booking = view.place(old, [1], exact=True, work_s=1.0, tokens=64, now=0.0)
    view.retire(old)
    for _ in range(3):
        view.sweep(now=0.0)
    others = [view.admit(Worker(f"b{number}"), now=0.0) for number in range(3)]
    assert old not in others
    view.inflight.release(booking, now=1.0)
    view.sweep(now=1.0)
    assert [view.admit(Worker(f"c{number}"), now=1.0) for number in range(4)].count(old) == 1
    assert view.inflight.requests.sum() == 0


def test_one_open_booking_does_not_hold_up_other_slots() -> None:
    view = View(capacity=2)
    slots = [view.admit(Worker(f"a{number}"), now=0.0) for number in range(2)]
    view.place(slots[0], [], exact=True, work_s=1.0, tokens=64, now=0.0)
    for slot in slots:
        view.retire(slot)
    for _ in range(2):
        view.sweep(now=0.0)
    assert view.admit(Worker("b"), now=0.0) == slots[1]


def test_a_reused_slot_shows_nothing_of_the_old_worker() -> None:
    view = View(capacity=1)
    slot = view.admit(Worker("a", publishes_kv=False), now=0.0)
    view.update_load(slot, Load(beat=9, running=3, waiting=2, waiting_tokens=50, kv_used=0.5), now=0.0)
    view.inflight.release(view.place(slot, [1, 2], exact=False, work_s=1.0, tokens=64, now=0.0), now=1.0)
    view.retire(slot)
    view.sweep(now=1.0)
    assert view.admit(Worker("b"), now=2.0) == slot
    assert [array[slot] for array in (view.running, view.waiting, view.waiting_tokens, view.kv_used)] == [0, 0, 0, 0]
    assert view.hit_blocks([1, 2])[slot] == 0
    assert view.inflight.utilisation(2.0)[slot] == 0


def test_the_view_grows_beyond_its_capacity() -> None:
    view = fleet(40, capacity=2)
    assert len(view.known) == 64
    assert {view.facts(slot).worker for slot in view.slots()} == {f"w{number}" for number in range(40)}
    assert view.serving("llama").sum() == view.ready.sum() == view.fresh().sum() == 40
    last = slot_at(view, endpoint(39))
    view.index.store(last, [1, 2])
    assert view.hit_blocks([1, 2, 3])[last] == 2
    booking = view.place(last, [1], exact=True, work_s=1.0, tokens=64, now=0.0)
    view.inflight.release(booking, now=1.0)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=60))
def test_workers_never_share_a_slot(capacity: int, script: list[tuple[int, bool]]) -> None:
    view, alive, epoch = View(capacity=capacity), dict[str, int](), 0
    for number, comes in script:
        name = f"w{number}"
        if comes:
            epoch += 1
            alive[name] = view.admit(Worker(name, epoch=epoch), now=0.0)
        elif name in alive:
            view.retire(alive.pop(name))
        view.sweep(now=0.0)
        assert len(set(alive.values())) == len(alive)
        assert np.flatnonzero(view.known).tolist() == sorted(alive.values()) == sorted(view.slots())


def test_a_worker_whose_beat_stands_still_becomes_stale() -> None:
    view = fleet(2)
    alive, silent = view.slots()
    for second in range(20):
        view.update_load(alive, Load(beat=second), now=float(second))
        view.update_load(silent, Load(beat=1), now=float(second))
        assert view.fresh()[alive]
        assert view.fresh()[silent] == (second <= STALE_AFTER_S)


def test_a_beat_that_moves_again_makes_a_worker_fresh_again() -> None:
    view = fleet(1)
    (slot,) = view.slots()
    for now, beat in ((1.0, 1), (20.0, 1)):
        view.update_load(slot, Load(beat=beat), now)
    assert not view.fresh()[slot]
    view.update_load(slot, Load(beat=0), now=20.1)
    assert view.fresh()[slot]


def test_a_worker_is_fresh_before_its_first_load_arrives() -> None:
    view = fleet(1)
    (first,) = view.slots()
    view.update_load(first, Load(beat=1), now=100.0)
    second = view.admit(Worker("late"), now=100.0)
    view.update_load(first, Load(beat=2), now=101.0)
    assert view.fresh()[second]


def test_nobody_becomes_stale_while_nothing_is_observed() -> None:
    view = fleet(2)
    for slot in view.slots():
        view.update_load(slot, Load(beat=1), now=1.0)
    view.sweep(now=10_000.0)
    assert view.fresh().sum() == 2


def test_readiness_and_usable_endpoints_follow_the_facts() -> None:
    view = View()
    slots = [view.admit(Worker(name, endpoint="10.0.0.9:1"), now=0.0) for name in "ab"]
    slots.append(view.admit(Worker("c", endpoint="10.0.0.1:1", state="loading"), now=0.0))
    assert view.usable_endpoints() == ("10.0.0.9:1",)
    view.update_facts(slots[2], Worker("c", endpoint="10.0.0.1:1"))
    assert view.usable_endpoints() == ("10.0.0.1:1", "10.0.0.9:1")
    for slot in slots[:2]:
        view.update_facts(slot, Worker(view.facts(slot).worker, state="draining"))
    assert view.usable_endpoints() == ("10.0.0.1:1",)


def test_masks_follow_the_fleet() -> None:
    view = fleet(2)
    first, second = view.slots()
    assert view.serving("llama").sum() == 2
    assert view.serving("sql").sum() == 0
    assert view.within(frozenset({endpoint(1), "1.1.1.1:1"})).nonzero()[0].tolist() == [second]
    version = view.version
    view.update_facts(first, Worker("w0", endpoint=endpoint(1), adapters=("sql",)))
    assert view.version > version
    assert view.serving("sql").nonzero()[0].tolist() == [first]
    assert view.within(frozenset({endpoint(1)})).sum() == 2
    view.retire(second)
    assert view.serving("llama").nonzero()[0].tolist() == [first]
    third = view.admit(Worker("w2", endpoint=endpoint(1)), now=0.0)
    assert set(view.within(frozenset({endpoint(1)})).nonzero()[0].tolist()) == {first, third}


def test_an_address_without_a_port_means_all_of_its_ports() -> None:
    view = View()
    for number, where in enumerate(("10.0.0.1:80", "10.0.0.1:81", "[fd00::1]:80", "10.0.0.11:80")):
        view.admit(Worker(f"w{number}", endpoint=where), now=0.0)

    def within(*names: str) -> set[str]:
        return {view.facts(int(slot)).worker for slot in view.within(frozenset(names)).nonzero()[0]}

    assert within("10.0.0.1") == {"w0", "w1"}
    assert within("[fd00::1]", "10.0.0.1:81") == {"w1", "w2"}


def test_masks_are_right_for_more_names_than_are_kept() -> None:
    view = fleet(1)
    for number in range(3000):
        assert view.serving(f"model-{number}").sum() == 0
    assert view.serving("llama").sum() == 1


@pytest.mark.parametrize(
    ("asked", "cached_as"),
    [
        ("llama", ("llama", "")),
        ("alias", ("llama", "")),
        ("sql", ("llama", "sql")),
        ("no-such", ("no-such", "")),
    ],
)
def test_prompts_are_cached_under_the_first_name_of_the_base_model(asked: str, cached_as: tuple[str, str]) -> None:
    view = View()
    view.admit(Worker("a", models=("llama", "alias"), adapters=("sql",)), now=0.0)
    assert view.base_and_adapter(asked) == cached_as


def test_hits_are_the_best_of_what_is_said_and_what_is_placed() -> None:
    view = fleet(3)
    said, placed, distrusted = view.slots()
    view.index.store(said, [1, 2])
    view.index.store(distrusted, [1, 2, 3])
    view.index.trust(distrusted, False)
    view.place(placed, [1, 2, 3], exact=True, work_s=1.0, tokens=192, now=0.0)
    hits = view.hit_blocks([1, 2, 3, 4])
    assert (hits[said], hits[placed], hits[distrusted]) == (2, 3, 0)


def test_a_placed_prompt_counts_briefly_where_events_will_tell_and_for_long_where_none_will() -> None:
    view = View()
    telling = view.admit(Worker("a"), now=0.0)
    silent = view.admit(Worker("b", publishes_kv=False), now=0.0)
    view.index.trust(telling, True)
    for slot in (telling, silent):
        view.place(slot, [1, 2], exact=True, work_s=1.0, tokens=128, now=0.0)
    view.place(telling, [8, 9], exact=False, work_s=1.0, tokens=128, now=0.0)
    view.sweep(now=60.0)
    assert view.hit_blocks([1, 2])[[telling, silent]].tolist() == [0, 2]
    assert view.hit_blocks([8, 9])[telling] == 2


def test_an_announcement_of_the_deepest_block_pays_the_debt() -> None:
    view = fleet(1)
    (slot,) = view.slots()
    view.place(slot, [1, 2], exact=True, work_s=1.0, tokens=128, now=0.0)
    view.inflight.announced(slot, 1, now=1.0)
    assert view.inflight.prefill_s[slot] == 1.0
    view.inflight.announced(slot, 2, now=1.0)
    assert view.inflight.prefill_s[slot] == 0


@pytest.mark.parametrize(("publishes_kv", "exact", "chain"), [(False, True, [1]), (True, False, [1]), (True, True, [])])
def test_nobody_waits_for_an_announcement_that_cannot_come(publishes_kv: bool, exact: bool, chain: list[int]) -> None:
    view = View()
    slot = view.admit(Worker("a", publishes_kv=publishes_kv), now=0.0)
    assert view.place(slot, chain, exact, work_s=1.0, tokens=64, now=0.0).last_block is None


def test_a_prompt_that_is_cached_whole_is_not_announced_again_and_owes_nothing() -> None:
    view = fleet(1)
    (slot,) = view.slots()
    view.index.store(slot, [1, 2])
    booking = view.place(slot, [1, 2], exact=True, work_s=0.01, tokens=150, now=0.0)
    assert booking.has_first_token
    assert (view.inflight.requests[slot], view.inflight.prefill_s[slot]) == (1, 0)
    assert not view.inflight.awaited
    speed = view.inflight.speed()[slot]
    view.inflight.first_token(booking, now=10.0)
    view.inflight.release(booking, now=10.0)
    assert view.inflight.speed()[slot] == speed
    assert view.inflight.requests[slot] == 0


def test_what_is_placed_while_no_events_arrive_is_remembered_longer_and_not_waited_for() -> None:
    view = fleet(1)
    view.is_live = False
    booking = view.place(0, [1, 2], True, 1.0, 128, now=0.0)
    assert not view.inflight.awaited
    view.sweep(now=60.0)
    assert view.hit_blocks([1, 2])[0] == 2
    view.inflight.release(booking, now=60.0)
    view.is_live = True
    view.place(0, [3, 4], True, 1.0, 128, now=60.0)
    assert view.inflight.awaited
    view.sweep(now=120.0)
    assert view.hit_blocks([3, 4])[0] == 0


def test_a_slot_whose_events_are_missing_is_not_waited_for() -> None:
    view = fleet(1)
    view.index.trust(0, False)
    view.place(0, [1, 2], True, 1.0, 128, now=0.0)
    assert not view.inflight.awaited


def test_what_a_worker_holds_already_counts_only_as_long_as_the_worker_says_so() -> None:
    view = fleet(1)
    (slot,) = view.slots()
    view.index.store(slot, [1, 2, 3])
    view.inflight.release(view.place(slot, [1, 2, 3], exact=True, work_s=0.0, tokens=192, now=0.0), now=0.1)
    view.index.remove(slot, [3, 2])
    assert view.hit_blocks([1, 2, 3])[slot] == 1
