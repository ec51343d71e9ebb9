"""Workers that an operator has cordoned, and the trace of who ruled whom out."""

from __future__ import annotations

from random import Random

import numpy as np

from picker.fleet.view import View
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision, Reason, Refused, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Worker, endpoint, fleet, slot_at
from tests.unit.test_decide import exclusions


def route(view: View, request: SchedulingRequest) -> Decision:
    return decide(request, view, POLICIES["least-request"], WorkerModel(), 0.0, Random(1))


def test_a_cordoned_worker_is_not_picked_and_not_told_to_envoy() -> None:
    view = fleet(2)
    view.cordon({"w0"})
    for number in range(20):
        decision = route(view, SchedulingRequest(number, "llama"))
        assert isinstance(decision, Routed)
        assert decision.endpoints == (endpoint(1),)
    assert view.usable_endpoints() == (endpoint(1),)
    view.cordon(())
    assert len(view.usable_endpoints()) == 2


def test_a_cordon_outlives_the_workers_epoch_and_may_come_before_the_worker() -> None:
    view = fleet(1)
    view.cordon({"w0", "w9"})
    view.admit(Worker("w0", epoch=2), now=0.0)
    view.admit(Worker("w9"), now=0.0)
    decision = route(view, SchedulingRequest(0, "llama"))
    assert decision == Refused(Reason.NOT_READY, {"cordoned": 2})


def test_a_decision_tells_later_whom_each_rule_has_ruled_out() -> None:
    view = fleet(4)
    view.cordon({"w1"})
    view.update_facts(slot_at(view, endpoint(2)), Worker("w2", endpoint=endpoint(2), state="draining"))
    request = SchedulingRequest(0, "llama", avoid=frozenset({endpoint(3)}))
    expected = {name: out.copy() for name, out in exclusions(request, view)}
    decision = route(view, request)
    assert isinstance(decision, Routed)
    view.retire(slot_at(view, endpoint(0)))
    view.admit(Worker("new"), now=1.0)
    view.cordon(())
    left, found = decision.known, {}
    for name, after in decision.steps:
        if (out := left & ~after).any():
            found[name] = out
        left = after
    assert {name: out.tolist() for name, out in found.items()} == {name: out.tolist() for name, out in expected.items()}
    assert set(found) == {"state", "cordoned", "failed-before"}
    assert np.count_nonzero(decision.eligible) == 1
