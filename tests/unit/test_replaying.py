"""Recordings: what decisions saw, written as what has changed, read back, and decided again."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from picker.admission.settings import AdmissionSettings, ClassSettings, Room
from picker.config import Config
from picker.events.recorder import Recorder
from picker.events.settings import Events
from picker.events.sink import Sink
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.breakers import Breakers
from picker.fleet.others import Sums
from picker.fleet.view import View
from picker.observing import Observer
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.replaying import Again, BadRecording, deciding, replay
from picker.scheduling.policies import POLICIES
from picker.scheduling.profile import Match, Profile, WorkerLimits
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import Load, Worker, endpoint

SECRET = "sk-very-secret"


class Day:
    """Traffic over a fleet in which everything happens that bears on decisions; `rng` makes it."""

    def __init__(self, folder: Path, seed: int = 1, **settings: Any):
        self.file = folder / "decisions.jsonl"
        events = Events(file=str(self.file), replayable=True, **settings.pop("events", {}))
        admission = settings.pop("admission", AdmissionSettings(enabled=False))
        self.config = Config(events=events, stale_after_s=1e9, admission=admission, **settings)
        self.rng = Random(seed)
        self.view = View(
            self.config.stale_after_s,
            failure_domain=self.config.failure_domain,
            capacity=4,
            breakers=Breakers(4, failures=1),
        )
        self.recorder = Recorder(self.config.events, "p")
        self.sink = Sink(self.config.events, self.recorder, deciding(self.config), None)
        observer = Observer(self.recorder, self.view, replayable=True)
        self.picker = Picker(self.config, self.view, PromptReader({}), Metrics(), lambda: False, observer)
        # Equals are told apart by it, and a day must be the same each time.
        self.picker._placer.salt = seed
        self.open: list[Any] = []
        self.epoch = self.beat = 0

    @property
    def files(self) -> list[Path]:
        return sorted(self.file.parent.glob("decisions.jsonl*"))

    async def go(self, requests: int) -> Path:
        for number in range(6 if not self.epoch else 0):
            self.admit(number)
        for _ in range(requests):
            self.happen()
            await self.ask()
        self.picker.close()
        await self.sink.flush()
        return self.file

    async def ask(self) -> None:
        model = self.rng.choice(["llama", "llama", "llama", "tuned", SECRET])
        prompt = f"{self.rng.randrange(4)} " * self.rng.randrange(1000)
        tenant = self.rng.choice(["acme", SECRET])
        headers = {
            ":method": "POST", ":path": "/v1/completions", "x-session-id": SECRET, "authorization": SECRET,
            "x-llm-d-inference-fairness-id": tenant,
        }  # fmt: skip
        answer = await self.picker.pick(Pick(headers, json.dumps({"model": model, "prompt": prompt}).encode()))
        if isinstance(answer, Picked) and answer.placement:
            self.open.append(answer.placement)

    def admit(self, number: int) -> None:
        self.epoch += 1
        zone = {"zone": self.rng.choice("ab")}
        facts = Worker(f"w{number}", self.epoch, endpoint(number), adapters=("tuned",), labels=zone, publishes_kv=False)
        self.view.admit(facts, now=0.0)

    def happen(self) -> None:
        view, rng = self.view, self.rng
        slots = list(view.slots())
        match rng.randrange(8):
            case 0 if self.open:
                placement = self.open.pop(rng.randrange(len(self.open)))
                self.picker.first_byte(placement, rng.choice([200, 200, 503]), "")
                self.picker.release(placement)
            case 1:
                self.beat += 1
                load = Load(self.beat, running=rng.randrange(9), waiting=rng.randrange(3), kv_used=rng.random())
                view.update_load(rng.choice(slots), load, now=float(self.beat))
            case 2:
                self.admit(rng.randrange(9))
            case 3 if len(slots) > 3:
                view.retire(rng.choice(slots))
            case 4:
                view.cordon({f"w{rng.randrange(9)}"})
            case 5:
                view.sweep(0.0)
            case 6:
                view.inflight.others.replace([(self.sums(), 1.0)], view.slots_of, 1.0)

    def sums(self) -> Sums:
        slots = list(self.view.slots())
        of = self.view.inflight
        return Sums(
            self.view.epochs[slots], of.requests[slots], of.context_tokens[slots], of.prefill_s[slots],
            of.prefill_s[slots], of.prefill_s[slots], of.prefill_s[slots],
        )  # fmt: skip


def not_reproduced(again: list[Again]) -> list[Again]:
    return [each for each in again if not each.is_reproduced]


@pytest.mark.parametrize("policy", sorted(POLICIES))
async def test_every_decision_of_a_recording_comes_out_the_same(tmp_path: Path, policy: str) -> None:
    file = await Day(tmp_path, policy=policy).go(120)
    again = list(replay([file]))
    assert len(again) == 120
    assert not_reproduced(again) == []
    assert {each.recorded_reason for each in again} == {"", "unknown-model"}


async def test_profiles_limits_and_tenants_are_part_of_what_decides(tmp_path: Path) -> None:
    profiles = (
        Profile(name="acme", match=Match(tenants=("acme",)), limits=WorkerLimits(running=1)),
        Profile(name="rest", policy="least-request", prefer={"zone": ("a",)}),
    )
    file = await Day(tmp_path, profiles=profiles, failure_domain="zone").go(150)
    again = list(replay([file]))
    assert not_reproduced(again) == []
    assert "all-workers-full" in {each.recorded_reason for each in again}


async def test_other_settings_show_what_they_would_have_changed(tmp_path: Path) -> None:
    file = await Day(tmp_path, policy="llm-d").go(150)
    other = Config(policy="random", stale_after_s=1e9, profiles=(Profile(limits=WorkerLimits(running=1)),))
    again = list(replay([file], other))
    assert not_reproduced(again) == []
    routed = [each for each in again if each.before.endpoints and each.after.endpoints]
    assert sum(each.after.hit_tokens for each in routed) < sum(each.before.hit_tokens for each in routed)
    assert any(each.after.reason == "all-workers-full" and not each.before.reason for each in again)
    assert all(each.before.ttft_s < 1e6 for each in routed)


async def test_a_recording_holds_nothing_that_a_client_wrote(tmp_path: Path) -> None:
    file = await Day(tmp_path).go(60)
    assert SECRET not in file.read_text()


async def test_each_file_of_a_rotated_recording_can_be_replayed_by_itself(tmp_path: Path) -> None:
    day = Day(tmp_path, events={"file_bytes": 20_000, "files": 3})
    for _ in range(8):
        await day.go(15)
    files = day.files
    assert [file.name for file in files] == ["decisions.jsonl", "decisions.jsonl.1", "decisions.jsonl.2"]
    for file in files:
        again = list(replay([file]))
        assert again and not_reproduced(again) == []


async def test_a_decision_that_found_no_room_in_the_queue_spoils_none_of_the_others(tmp_path: Path) -> None:
    day = Day(tmp_path, events={"queue": 30})
    again = list(replay([await day.go(50)]))
    assert day.sink.dropped > 0
    assert 0 < len(again) <= 30
    assert not_reproduced(again) == []


async def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{}\n")
    with pytest.raises(BadRecording, match=r"bad\.jsonl:1: is no line"):
        list(replay([bad]))
    whole = (await Day(tmp_path).go(5)).read_text().splitlines()
    bad.write_text("\n".join(line for line in whole if msgspec.json.decode(line)["event"] == "inputs"))
    with pytest.raises(BadRecording, match="begins in the middle"):
        list(replay([bad]))


async def test_a_detour_for_want_of_room_is_reproduced_but_for_where_it_found_room(tmp_path: Path) -> None:
    impatient = (ClassSettings(name="default", max_wait_s=0.01),)
    admission = AdmissionSettings(classes=impatient, room=Room(tokens=200), detour_s=100.0)
    file = await Day(tmp_path, admission=admission).go(120)
    again = list(replay([file]))
    assert any(each.was_detour for each in again)
    assert not_reproduced(again) == []


async def test_settings_that_change_while_recording_are_those_of_the_decisions_after_them(tmp_path: Path) -> None:
    day = Day(tmp_path, policy="random")
    await day.go(20)
    changed = Config(policy="least-request", stale_after_s=1e9, admission=AdmissionSettings(enabled=False))
    for _ in range(3):
        await day.ask()
    day.picker.configure(changed)
    day.sink.configure(deciding(changed))
    again = list(replay([await day.go(20)]))
    assert len(again) == 43
    assert not_reproduced(again) == []


async def test_what_the_ring_has_shortened_can_be_replayed_all_the_same(tmp_path: Path) -> None:
    again = list(replay([await Day(tmp_path, events={"ring_bytes": 1}).go(40)]))
    assert len(again) == 40
    assert not_reproduced(again) == []
