"""What of a worker's blocks is still to be published."""

from hypothesis import given
from hypothesis import strategies as st

from picker.agent.outbox import Outbox
from picker.redisview.records import MAX_EVENT_BLOCKS, KvEvent, KvOp, xor_of

BLOCKS = st.lists(st.integers(1, 30), max_size=8)
CHANGES = st.lists(st.tuples(st.sampled_from(["store", "remove", "clear", "draw"]), BLOCKS), max_size=40)


def applied(events: list[KvEvent]) -> set[int]:
    held: set[int] = set()
    for event in events:
        match event.op:
            case KvOp.STORE:
                held.update(event.blocks)
            case KvOp.REMOVE:
                held.difference_update(event.blocks)
            case KvOp.CLEAR:
                held.clear()
    return held


@given(CHANGES)
def test_the_events_in_order_make_up_the_set_and_its_digest(changes: list[tuple[str, list[int]]]) -> None:
    outbox, events = Outbox(7, max_pending=1000), []
    for change, blocks in [*changes, ("draw", [])]:
        match change:
            case "store":
                outbox.store(blocks)
            case "remove":
                outbox.remove(blocks)
            case "clear":
                outbox.clear()
            case "draw":
                events += outbox.draw()
    held = set(outbox.snapshot((0, 0)).blocks)
    assert applied(events) == held
    assert (len(outbox), outbox.xor) == (len(held), xor_of(sorted(held)))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))


def test_no_event_has_more_blocks_than_may_be_applied_at_once() -> None:
    outbox = Outbox(7, max_pending=1000)
    outbox.store(range(2 * MAX_EVENT_BLOCKS + 1))
    assert [len(event.blocks) for event in outbox.draw()] == [MAX_EVENT_BLOCKS, MAX_EVENT_BLOCKS, 1]


def test_what_is_stored_twice_is_told_once() -> None:
    outbox = Outbox(7, max_pending=1000)
    outbox.store([1, 2, 2])
    outbox.store([2, 3])
    outbox.remove([9])
    assert [event.blocks for event in outbox.draw()] == [(1, 2, 3)]


def test_a_snapshot_has_parents_before_children() -> None:
    outbox = Outbox(7, max_pending=1000)
    outbox.store([30, 10, 20])
    outbox.remove([10])
    outbox.store([10])
    assert outbox.snapshot((5, 0)).blocks == [30, 20, 10]


def test_pending_changes_that_are_given_up_leave_a_gap_and_need_a_snapshot() -> None:
    outbox = Outbox(7, max_pending=10)
    outbox.snapshot((0, 0))
    outbox.store(range(11))
    assert (outbox.pending_blocks, outbox.needs_snapshot) == (0, True)
    outbox.store([100])
    assert [event.seq for event in outbox.draw()] == [2]
    assert len(outbox.snapshot((0, 0)).blocks) == 12


def test_an_unchanged_set_needs_no_other_snapshot() -> None:
    outbox = Outbox(7, max_pending=10)
    outbox.store([1])
    outbox.draw()
    outbox.snapshot((0, 0))
    assert not outbox.has_changed
    outbox.store([2])
    outbox.draw()
    assert outbox.has_changed
