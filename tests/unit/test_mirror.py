"""The mirror of what workers say they hold, and what it does to what was expected of them."""

from __future__ import annotations

from picker.fleet.fence import Fence
from picker.fleet.mirror import Mirror
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.redisview.records import KvEvent, KvOp
from tests.unit.fleets import fleet

CHAIN = [1, 2, 3]


def mirrored() -> tuple[View, Mirror, Fence]:
    view = fleet(1)
    (slot,) = view.slots()
    mirror = Mirror(view, Tally())
    fence = Fence("w0", 1, slot)
    fence.restart(0)
    mirror.fences.add(fence)
    return view, mirror, fence


def hit(view: View) -> int:
    return int(view.hit_blocks(CHAIN).max())


def test_a_placed_prompt_that_is_announced_and_then_evicted_is_not_expected_to_be_there() -> None:
    view, mirror, fence = mirrored()
    view.place(fence.slot, CHAIN, exact=True, work_s=1.0, tokens=192, now=0.0)
    assert hit(view) == 3
    mirror.apply(fence, KvEvent(1, 1, KvOp.STORE, (1, 2)), 0.1)
    assert hit(view) == 3
    mirror.apply(fence, KvEvent(1, 2, KvOp.STORE, (3,)), 0.2)
    assert hit(view) == 3
    mirror.apply(fence, KvEvent(1, 3, KvOp.REMOVE, (3, 2)), 0.3)
    assert hit(view) == 1


def test_blocks_of_a_snapshot_show_first_tokens_and_confirm_what_was_expected() -> None:
    view, mirror, fence = mirrored()
    booking = view.place(fence.slot, CHAIN, exact=True, work_s=1.0, tokens=192, now=0.0)
    mirror.restore(fence, CHAIN, 30.0)
    assert booking.has_first_token
    mirror.apply(fence, KvEvent(1, 1, KvOp.CLEAR), 31.0)
    assert hit(view) == 0


def test_what_was_placed_while_a_worker_was_not_heard_counts_until_it_is() -> None:
    view, mirror, fence = mirrored()
    mirror.doubt(fence)
    view.place(fence.slot, CHAIN, exact=True, work_s=1.0, tokens=192, now=0.0)
    view.sweep(now=60.0)
    assert hit(view) == 3
    fence.restart(0)
    assert mirror.settle(fence)
    assert hit(view) == 0
