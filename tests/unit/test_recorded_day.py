"""A recorded day that is played again: what another policy does has consequences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from picker.config import Config
from picker.events.inputs import Fleet, Inputs, Process, Worker
from picker.events.record import Outcome, Record, Stages, digest, line
from picker.replaying import BadRecording, deciding
from picker.scheduling.profile import Match, Profile
from picker.scheduling.request import SchedulingRequest
from picker.simulation.discrete.outcome import FAILED
from picker.simulation.discrete.recorded import Day, play, read
from tests.unit.fleets import endpoint

BLOCKS, TOKENS = 64, 4096


def worker(number: int, epoch: int = 1, **facts: Any) -> Worker:
    named = {"state": "ready", "models": ("llama",), "kv_capacity_tokens": 200_000, **facts}
    return Worker(worker=f"w{number}", epoch=epoch, endpoint=endpoint(number), **named)


def inputs(number: int, now: float, conversation: int, **told: Any) -> Inputs:
    """A request whose prompt is that of its conversation but for the last block."""
    chain = [*(conversation * 1000 + block for block in range(BLOCKS - 1)), -number]
    about = SchedulingRequest(number, "llama", TOKENS, 100, chain)
    fields = msgspec.to_builtins(about)
    del fields["profile"]
    return Inputs(id=f"p-{number}", shape=0, now=now, ties=0, about=fields, endpoints=(endpoint(0),), **told)


def ended(number: int, **told: Any) -> Record:
    outcome = Outcome(end="answered", status=200, output_tokens=20, first_byte_s=0.2)
    return Record(
        id=f"p-{number}", at=1000.0, verdict="route", endpoints=(endpoint(0),), prompt_tokens=TOKENS, outcome=outcome,
        **told,
    )  # fmt: skip


def recording(folder: Path, lines: Sequence[Any], **settings: Any) -> Day:
    file = folder / "decisions.jsonl"
    process = Process(process="p", policy=deciding(Config(**settings)))
    file.write_bytes(b"".join(map(line, (process, *lines))))
    return read([file])


@pytest.fixture
def day(tmp_path: Path) -> Day:
    """Seven conversations of a dozen turns on four workers."""
    fleet = Fleet(workers={number: worker(number) for number in range(4)})
    turns = [inputs(number, 500.0 + number / 4, number % 7) for number in range(80)]
    return recording(tmp_path, [fleet, *turns, *(ended(number) for number in range(80))])


def test_the_policy_that_keeps_conversations_together_finds_their_caches(day: Day) -> None:
    kept, scattered = (play(day, Config(policy=name)) for name in ("expected-delay", "round-robin"))
    hits = [sum(each.cached_tokens for each in played.outcome.requests) for played in (kept, scattered)]
    assert hits[0] > 1.3 * hits[1] > 0
    assert kept.predicted.hit_tokens > scattered.predicted.hit_tokens
    assert sum(kept.predicted.ttft_s) < sum(scattered.predicted.ttft_s)
    assert len(kept.outcome.requests) == 80 and all(each.ttft_s < FAILED for each in kept.outcome.requests)


def test_the_same_settings_give_the_same_day(day: Day) -> None:
    one, same = play(day, day.config), play(day, day.config)
    assert one.outcome.requests == same.outcome.requests and one.predicted == same.predicted


def test_a_day_is_what_was_recorded(day: Day) -> None:
    assert [ask.at for ask in day.asks[:3]] == [0.0, 0.25, 0.5]
    assert {ask.output_tokens for ask in day.asks} == {20}
    assert day.recorded.routed == 80 and day.recorded.ttft_s == [0.2] * 80


def test_placements_that_fill_the_workers_make_those_after_them_wait(tmp_path: Path) -> None:
    fleet = Fleet(workers={0: worker(0), 1: worker(1, labels={"kind": "spare"})})
    turns = [inputs(number, 500.0 + number / 40, number) for number in range(100)]
    day = recording(tmp_path, [fleet, *turns])
    only_one = Config(profiles=(Profile(require={"kind": ("spare",)}),))
    both, one = (sorted(each.ttft_s for each in play(day, config).outcome.requests) for config in (Config(), only_one))
    assert one[50] > 1.5 * both[50]


def test_workers_come_and_go_as_they_did(tmp_path: Path) -> None:
    before, after = {0: worker(0), 1: worker(1)}, {1: worker(1), 2: worker(2), 3: worker(0, epoch=2)}
    first = [inputs(number, 500.0 + number, number) for number in range(20)]
    then = [inputs(number, 500.0 + number, number) for number in range(20, 60)]
    day = recording(tmp_path, [Fleet(workers=before), *first, Fleet(workers=after), *then])
    assert [each.worker for each in day.workers] == ["w0", "w1", "w2"]
    assert [(each.at, each.worker, each.is_there) for each in day.presences[2:]] == [
        (20.0, 0, False),
        (20.0, 2, True),
        (20.0, 0, True),
    ]
    served = [(request.at, request.worker) for request in play(day, Config(policy="round-robin")).outcome.requests]
    assert {who for at, who in served if at < 20} == {0, 1}
    assert {who for at, who in served if at >= 20} == {0, 1, 2}


def test_requests_that_were_turned_away_come_again(tmp_path: Path) -> None:
    waited, turned = ended(0, stages=Stages(queue_s=2.0)), ended(1, stages=Stages(queue_s=3.0))
    turned = msgspec.structs.replace(turned, at=1004.0, verdict="refuse", reason="queue-timeout", endpoints=())
    day = recording(tmp_path, [Fleet(workers={0: worker(0)}), inputs(0, 500.0, 0), waited, turned])
    # The first decision was made at 500 after 2 s, the second request was given up at 504 after 3 s.
    assert [ask.at for ask in day.asks] == [0.0, 3.0]
    assert day.recorded.refused == {"queue-timeout": 1}
    assert play(day, Config()).predicted.routed == 2


def test_profiles_find_tenants_by_their_digests(tmp_path: Path) -> None:
    fleet = Fleet(workers={0: worker(0), 1: worker(1, labels={"kind": "spare"})})
    turns = [inputs(number, 500.0 + number, number, tenant=digest("acme")) for number in range(10)]
    day = recording(tmp_path, [fleet, *turns])
    spare = Profile(match=Match(tenants=("acme",)), require={"kind": ("spare",)})
    assert {request.worker for request in play(day, Config(profiles=(spare,))).outcome.requests} == {1}


def test_without_inputs_there_is_no_day(tmp_path: Path) -> None:
    with pytest.raises(BadRecording, match="replayable"):
        recording(tmp_path, [ended(0)])
