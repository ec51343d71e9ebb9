"""Decisions as events: what is recorded of a pick, how it ends, and what is not recorded."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from picker.config import Config
from picker.events.record import Record, line
from picker.events.recorder import Recorder
from picker.events.settings import Events
from picker.extproc.access_log import Outcome as Logged
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.fleet.view import View
from picker.observing import Observer
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import Worker, endpoint, fleet

PROMPT = "the quick brown fox jumps over the lazy dog " * 40


class Rig:
    """A picker over a small fleet, and its recorder."""

    def __init__(self, view: View, **events: Any):
        self.view = view
        self.recorder = Recorder(Events(**events), "p", ("acme",), wall=lambda: 1_800_000_000.0)
        observer = Observer(self.recorder, view)
        self.picker = Picker(Config(), view, PromptReader({}), Metrics(), lambda: False, observer)

    async def pick(self, request_id: str = "r1", model: str = "llama", prompt: str = PROMPT, **headers: str) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = json.dumps({"model": model, "prompt": prompt}).encode()
        path = {":method": "POST", ":path": "/v1/completions", "x-request-id": request_id}
        return await self.picker.pick(Pick({**path, **named}, body))

    @property
    def last(self) -> Record:
        return next(self.recorder.ring.newest()).record()


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig(fleet(3))
    yield rig
    rig.picker.close()


async def test_a_routed_request_is_recorded_with_its_candidates_and_its_end(rig: Rig) -> None:
    answer = await rig.pick(traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    assert isinstance(answer, Picked)
    rig.picker.first_byte(answer.placement, 200, answer.endpoints[0])
    rig.picker.release(answer.placement)
    found = rig.last
    assert (found.verdict, found.request_id, found.model, found.rung) == ("route", "r1", "llama", "text")
    assert found.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert found.endpoints == answer.endpoints
    assert found.eligible == len(found.candidates) == 3
    assert [each.endpoint for each in found.candidates] == list(answer.endpoints)
    winner = found.candidates[0]
    assert winner.cost == pytest.approx(sum(winner.terms.values()), abs=1e-5)
    assert (found.outcome.end, found.outcome.status, found.outcome.served) == ("answered", 200, answer.endpoints[0])
    assert found.outcome.duration_s is not None and found.outcome.first_byte_s is not None


async def test_a_hit_shows_with_what_the_best_worker_holds(rig: Rig) -> None:
    first = await rig.pick()
    rig.picker.release(first.placement)
    again = await rig.pick("r2")
    assert again.endpoints[0] == first.endpoints[0]
    assert rig.last.hit_tokens == rig.last.best_hit_tokens > 0


async def test_a_request_that_nobody_answers_was_cancelled(rig: Rig) -> None:
    answer = await rig.pick()
    rig.picker.release(answer.placement)
    assert rig.last.outcome.end == "cancelled"


async def test_a_response_that_breaks_off_was_cancelled_unless_envoys_log_knows_better(rig: Rig) -> None:
    answer = await rig.pick()
    rig.picker.first_byte(answer.placement, 200, "")
    rig.picker.release(answer.placement, is_unfinished=True)
    assert rig.last.outcome.end == "cancelled"
    rig.recorder.logged(Logged(200, 1, answer.endpoints, "", "r1", is_broken=True))
    assert rig.last.outcome.end == "failed"


@pytest.mark.parametrize(
    ("logged", "end"),
    [
        (Logged(429, 1, (), "", "r1", details="picker:preempted"), "refused"),
        (Logged(200, 1, (), "", "r1", details="via_upstream"), "answered"),
        (Logged(0, 0, (), "", "r1"), "cancelled"),
        (Logged(503, 1, (), "", "r1"), "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.details,
)
async def test_why_a_stream_ended_without_an_answer_is_what_envoys_log_says(rig: Rig, logged: Logged, end: str) -> None:
    answer = await rig.pick()
    rig.picker.release(answer.placement)
    rig.recorder.logged(logged)
    assert rig.last.outcome.end == end


async def test_the_stages_of_a_request_are_told_from_its_headers_to_the_answer(rig: Rig) -> None:
    body = json.dumps({"model": "llama", "prompt": PROMPT}).encode()
    began_at = time.monotonic() - 1.5
    answer = await rig.picker.pick(Pick({":method": "POST", ":path": "/v1/completions"}, body, began_at=began_at))
    assert isinstance(answer, Picked)
    rig.picker.replied(answer.placement)
    stages = rig.last.stages
    assert 1.5 <= stages.receive_s < 60
    assert min(stages.read_s, stages.prompt_s, stages.decide_s, stages.reply_s) > 0
    assert stages.queue_s == 0


async def test_envoys_log_completes_what_the_stream_could_not_tell(rig: Rig) -> None:
    answer = await rig.pick()
    rig.picker.first_byte(answer.placement, 200, "")
    rig.picker.release(answer.placement)
    logged = Logged(200, 2, answer.endpoints, endpoint(9), "r1", is_cancelled=True, details="via_upstream")
    rig.recorder.logged(logged)
    outcome = rig.last.outcome
    assert (outcome.end, outcome.attempts, outcome.served) == ("cancelled", 2, endpoint(9))


async def test_refusals_tell_who_was_ruled_out_by_what() -> None:
    view = fleet(3)
    view.cordon({"w0"})
    view.update_facts(next(iter(view.slots())), Worker("w0", endpoint=endpoint(0)))
    rig = Rig(view)
    for slot in list(view.slots())[1:]:
        view.update_facts(slot, Worker(view.facts(slot).worker, state="draining"))
    assert isinstance(await rig.pick(), NotPicked)
    rig.picker.close()
    assert (rig.last.verdict, rig.last.reason, rig.last.status) == ("refuse", "no-worker-ready", 503)
    assert {each.rule: each.workers for each in rig.last.ruled_out} == {"state": ("w1", "w2"), "cordoned": ("w0",)}
    assert rig.last.outcome.end == "refused"


async def test_a_body_that_nobody_understands_is_an_event_too(rig: Rig) -> None:
    answer = await rig.picker.pick(
        Pick({":method": "POST", ":path": "/v1/completions", "x-request-id": "bad"}, b"[1, 2]")
    )
    assert isinstance(answer, NotPicked)
    assert (rig.last.verdict, rig.last.reason, rig.last.request_id) == ("refuse", "bad-request", "bad")


async def test_names_from_clients_are_shown_only_where_they_are_known(rig: Rig) -> None:
    await rig.pick("weird id; drop", model="sk-secret-model", x_llm_d_inference_fairness_id="sk-secret")
    text = line(rig.last).decode()
    assert "sk-secret" not in text and "weird" not in text
    assert rig.last.tenant.startswith("~") and rig.last.model.startswith("~")
    assert rig.recorder.ring.find(rig.last.request_id)
    await rig.pick("r2", x_llm_d_inference_fairness_id="acme")
    assert rig.last.tenant == "acme"


async def test_a_record_is_one_line_of_json_that_reads_back(rig: Rig) -> None:
    await rig.pick()
    data = line(rig.last)
    assert data.count(b"\n") == 1 and PROMPT[:9].encode() not in data
    assert msgspec.json.decode(data, type=Record) == rig.last


async def test_tries_of_one_request_are_found_together_and_by_their_own_ids(rig: Rig) -> None:
    for _ in range(2):
        await rig.pick("again")
    found = rig.recorder.ring.find("again")
    assert [each.number for each in found] == [1, 2]
    assert rig.recorder.ring.find(found[1].id) == [found[1]]
    assert rig.recorder.ring.find("nobody") == []


async def test_the_ring_keeps_the_last_ones_and_lets_go_of_arrays() -> None:
    rig = Rig(fleet(3), ring=5, ring_bytes=1)
    before = []
    for number in range(8):
        await rig.pick(f"r{number}")
        before.append(rig.last)
    rig.picker.close()
    ring = rig.recorder.ring
    assert [each.record() for each in ring.newest()] == before[:2:-1]
    assert sum(each.decision is not None for each in ring.newest()) == 1
    assert ring.find("r0") == []
    assert ring.full_bytes == next(ring.newest()).size


async def test_without_a_ring_nothing_is_kept() -> None:
    rig = Rig(fleet(1), ring=0)
    answer = await rig.pick()
    rig.picker.release(answer.placement)
    rig.picker.close()
    assert len(rig.recorder.ring) == 0


async def test_listeners_hear_of_each_decision_and_each_end(rig: Rig) -> None:
    heard: list[str] = []
    rig.recorder.on_decided.append(lambda decided: heard.append(f"decided {decided.verdict}"))
    rig.recorder.on_ended.append(lambda decided: heard.append(f"ended {decided.outcome.end}"))
    answer = await rig.pick()
    rig.picker.release(answer.placement)
    await rig.pick(model="nobody")
    assert heard == ["decided route", "ended cancelled", "decided refuse", "ended refused"]
