"""The loop that decisions are compared with decides the same."""

from random import Random

import pytest

from benchmarks.decide.by_loop import decide_by_loop
from benchmarks.decide.fleet import SPREADS, busy_fleet, prompt
from picker.scheduling.decide import decide
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import find


@pytest.mark.parametrize("spread", SPREADS.values(), ids=list(SPREADS))
@pytest.mark.parametrize("workers", [3, 40])
def test_the_loop_and_the_arrays_choose_the_same_workers(workers: int, spread: int) -> None:
    view, model = busy_fleet(workers, spread), WorkerModel()
    decision = decide(prompt(), view, find("expected-delay"), model, 10.0, Random(0))
    assert isinstance(decision, Routed)
    assert decide_by_loop(prompt(), view, model, 10.0, Random(0)) == list(decision.slots)
