"""What clients name must not stay in the view, and what they are told must be so."""

from __future__ import annotations

import tracemalloc

import pytest

from picker.fleet.endpoints import canonical
from picker.fleet.view import View
from picker.scheduling.decision import Reason, Refused
from picker.scheduling.eligibility import eligible
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Worker, fleet


def test_models_that_nobody_serves_take_no_memory_however_long_their_names() -> None:
    view = fleet(2)
    tracemalloc.start()
    try:
        for number in range(50):
            assert not view.serving(f"{number}{'x' * 1_000_000}").any()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000


@pytest.mark.parametrize("text", ["[fe80::1%a\nb]:1", "[fe80::1%10.0.0.1:1,10.0.0.2]:1", "fe80::1%eth0"])
def test_an_address_with_a_scope_is_no_endpoint(text: str) -> None:
    assert canonical(text) is None


def test_a_model_is_unknown_only_once_all_workers_have_said_what_they_serve() -> None:
    view = View()
    slot = view.admit(Worker("w", models=(), state="loading"), now=0.0)
    refused = eligible(SchedulingRequest(0, "llama"), view, 0.0)
    assert isinstance(refused, Refused) and refused.reason is Reason.NOT_READY
    view.update_facts(slot, Worker("w", models=("other",)))
    refused = eligible(SchedulingRequest(0, "llama"), view, 0.0)
    assert isinstance(refused, Refused) and refused.reason is Reason.UNKNOWN_MODEL
