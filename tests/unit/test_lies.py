"""What comes of a worker that lies: of what it holds, and of how busy it is."""

from __future__ import annotations

from collections import Counter

import pytest

from picker.fleet.fence import Fence
from picker.fleet.mirror import Mirror
from picker.fleet.tally import Tally
from picker.redisview.records import MAX_EVENT_BLOCKS, KvEvent, KvOp
from picker.scheduling.policies import POLICIES
from tests.unit.fleets import Load, fleet
from tests.unit.test_decide import request, send

WORKERS = 4


def test_what_a_worker_claims_counts_for_itself_only() -> None:
    view, tally = fleet(2), Tally()
    mirror = Mirror(view, tally)
    liar, honest = (Fence(view.facts(slot).worker, view.facts(slot).epoch, slot) for slot in view.slots())
    for fence in (liar, honest):
        fence.restart(0)
        mirror.fences.add(fence)
    chain = list(range(1, 101))
    mirror.apply(honest, KvEvent(honest.epoch, 1, KvOp.STORE, tuple(chain[:50])), 0.0)
    mirror.apply(liar, KvEvent(liar.epoch, 1, KvOp.STORE, tuple(chain)), 0.0)
    assert view.hit_blocks(chain)[[liar.slot, honest.slot]].tolist() == [100, 50]
    # What it takes back, or clears, is its own as well.
    mirror.apply(liar, KvEvent(liar.epoch, 2, KvOp.REMOVE, tuple(chain[:MAX_EVENT_BLOCKS])), 0.0)
    mirror.apply(liar, KvEvent(liar.epoch, 3, KvOp.CLEAR), 0.0)
    assert view.hit_blocks(chain)[[liar.slot, honest.slot]].tolist() == [0, 50]


@pytest.mark.parametrize("policy", ["expected-delay", "least-request"])
@pytest.mark.parametrize("says", [Load(1), Load(1, running=500, waiting=500)], ids=["idle", "busy"])
def test_a_worker_that_always_says_that_it_is_idle_gets_no_more_than_its_share(policy: str, says: Load) -> None:
    view, went = fleet(WORKERS), Counter[int]()
    assert policy in POLICIES
    for number in range(200):
        now = number * 0.01
        slot = send(view, request(tokens=640, chain_id=number), now, seed=number, policy=policy)
        went[slot] += 1
        for each in range(1, WORKERS):
            view.update_load(each, Load(number, running=went[each]), now)
        view.update_load(0, says if says.running else Load(number), now)
    share = 200 / WORKERS
    assert went[0] <= 1.2 * share
    assert all(went[each] >= 0.8 * share for each in range(1, WORKERS))


def test_a_worker_that_claims_a_prompt_keeps_it_only_while_its_queue_is_worth_it() -> None:
    view, went = fleet(WORKERS), Counter[int]()
    wanted = request(tokens=6400, chain_id=7)
    view.index.store(0, wanted.chain)
    for number in range(100):
        went[send(view, wanted, now=number * 0.001, seed=number)] += 1
    assert len(went) > 1, "a false claim draws the whole of a burst"
