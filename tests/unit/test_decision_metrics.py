"""Decisions as metrics: all of them are counted, though many at a time, and whatever the ring keeps."""

from __future__ import annotations

from typing import Any

import pytest

from picker.config import Config
from picker.extproc.access_log import Outcome as Logged
from picker.telemetry.decisions import DecisionMetrics
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import fleet
from tests.unit.test_recorder import Rig


class Counted(Rig):
    """A picker whose decisions are counted."""

    def __init__(self, **events: Any):
        super().__init__(fleet(3), **events)
        self.metrics = Metrics()
        self.counted = DecisionMetrics(self.metrics.registry, self.recorder)
        self.counted._has_waited = True

    async def answer(self, count: int, **request: str) -> None:
        """So many requests, each answered."""
        for number in range(count):
            answer = await self.pick(f"r{number}", **request)
            self.picker.replied(answer.placement)
            self.picker.first_byte(answer.placement, 200, answer.endpoints[0])
            self.picker.release(answer.placement)

    def scrape(self, name: str) -> dict[tuple[str, ...], float]:
        """Sums of a metric's samples, by their label values."""
        found = {}
        for family in self.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == name:
                    found[tuple(sample.labels.values())] = sample.value
        return found


@pytest.mark.parametrize("events", [{}, {"ring": 0}, {"ring_bytes": 1}, {"ring": 1}], ids=str)
@pytest.mark.parametrize("count", [1, 70])
async def test_each_decision_counts_whatever_the_ring_keeps(events: dict[str, int], count: int) -> None:
    rig = Counted(**events)
    await rig.answer(count, x_llm_d_inference_fairness_id="acme")
    await rig.pick(model="sk-secret")
    rig.picker.close()
    assert rig.scrape("picker_routed_requests_total") == {("llama", "acme", ""): count}
    assert rig.scrape("picker_refused_requests_total") == {("other", "", "", "unknown-model"): 1}
    assert sum(rig.scrape("picker_worker_picks_total").values()) == count
    assert rig.scrape("picker_ended_requests_total") == {("answered", "", "0.32.0"): count}
    assert rig.scrape("picker_first_byte_seconds_count") == {("llama",): count}
    assert rig.scrape("picker_request_seconds_count") == {("llama",): count}
    stages = rig.scrape("picker_stage_seconds_count")
    assert stages == {("read",): count + 1, ("prompt",): count + 1, ("decide",): count, ("reply",): count}
    assert rig.counted.running["llama"] == 0


async def test_no_pick_waits_for_a_scrape() -> None:
    rig = Counted()
    with rig.counted._counting:  # a scrape that is at it
        await rig.answer(200)
    rig.picker.close()
    assert rig.scrape("picker_routed_requests_total") == {("llama", "", ""): 200}


async def test_what_is_under_way_counts_as_running() -> None:
    rig = Counted()
    placements = [(await rig.pick(f"r{number}")).placement for number in range(3)]
    rig.counted.count()
    assert rig.counted.running["llama"] == 3
    for placement in placements:
        rig.picker.release(placement)
    rig.picker.close()
    rig.counted.count()
    assert rig.counted.running["llama"] == 0


async def test_how_a_request_ended_is_counted_when_envoys_log_has_told() -> None:
    rig = Counted()
    rig.recorder.logged(Logged(200, 1, (), "", "another"))
    await rig.answer(3)
    assert rig.scrape("picker_ended_requests_total") == {}
    assert rig.counted.running["llama"] == 0
    rig.recorder.logged(Logged(200, 1, (), "", "r0", is_cancelled=True))
    rig.recorder.logged(Logged(200, 1, (), "", "r1", is_broken=True))
    assert rig.scrape("picker_ended_requests_total") == {
        ("cancelled", "", "0.32.0"): 1,
        ("failed", "", "0.32.0"): 1,
    }
    # The log of the third one is lost.
    [third] = rig.recorder.ring.find("r2")
    assert third.ended_at is not None
    third.ended_at -= 3.0
    rig.picker.close()
    assert rig.scrape("picker_ended_requests_total")["answered", "", "0.32.0"] == 1


async def test_the_first_request_is_waited_for_though_no_log_has_come_yet() -> None:
    rig = Counted()
    rig.counted._has_waited = False
    await rig.answer(1)
    assert rig.scrape("picker_ended_requests_total") == {}
    rig.recorder.logged(Logged(200, 1, (), "", "r0", is_cancelled=True))
    rig.picker.close()
    assert rig.scrape("picker_ended_requests_total") == {("cancelled", "", "0.32.0"): 1}


async def test_hits_that_another_worker_had_are_counted() -> None:
    rig = Counted()
    # Looks at no cache: the second request goes where the first is not.
    rig.picker.configure(Config(policy="least-request"))
    first = (await rig.pick()).placement
    second = (await rig.pick("r2")).placement
    rig.picker.close()
    assert first.booking.slot != second.booking.slot
    held = int(second.decision.hits[first.booking.slot])
    assert rig.scrape("picker_hit_tokens_forgone_total") == {("llama",): held} and held > 0
