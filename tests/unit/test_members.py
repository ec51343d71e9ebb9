"""Who of the load HASH becomes a worker in the view."""

from __future__ import annotations

from dataclasses import replace

from picker.fleet.feed_settings import FeedSettings
from picker.fleet.fences import Fences
from picker.fleet.members import Members
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.redisview.reader import Registration
from picker.redisview.records import Foreign, LoadRecord, WorkerRecord, WorkerState

SETTINGS = FeedSettings(
    max_workers=2, missing_grace_s=5.0, retire_after_s=30.0, first_lookup_retry_s=1.0, longest_lookup_retry_s=8.0
)
LOAD = LoadRecord(epoch=1, beat=1, facts=1)


class Pool:
    """Members, and a load HASH of them: `beat` moves whoever is in it."""

    def __init__(self, settings: FeedSettings = SETTINGS):
        self.view, self.fences, self.tally = View(), Fences(), Tally()
        self.members = Members(self.view, self.fences, self.tally, settings)
        self.loads: dict[str, LoadRecord] = {}
        self.records: dict[str, Registration | Foreign] = {}

    def register(self, worker: str, epoch: int = 1, facts: int = 1, endpoint: str = "10.0.0.1:1") -> None:
        record = WorkerRecord(worker=worker, epoch=epoch, endpoint=endpoint, state=WorkerState.READY)
        self.records[worker] = Registration(record, facts)
        self.loads[worker] = LoadRecord(epoch, 1, facts)

    def beat(self) -> None:
        self.loads = {worker: replace(load, beat=load.beat + 1) for worker, load in self.loads.items()}

    def poll(self, now: float) -> list[str]:
        """One poll; whose record was looked up."""
        self.members.note({worker: load.pack() for worker, load in self.loads.items()}, now)
        unregistered = self.members.unregistered(now)
        for member in unregistered:
            self.members.take(member, self.records.get(member.worker), now)
        self.members.update_view(now)
        self.members.retire_missing(now)
        return [member.worker for member in unregistered]

    def workers(self) -> set[str]:
        return {self.view.facts(slot).worker for slot in self.view.slots()}


def test_a_field_without_a_record_is_looked_up_after_waits_that_double_up_to_a_bound() -> None:
    pool = Pool()
    pool.loads["bogus"] = LOAD
    looked_up = [now for now in range(29) if pool.poll(float(now))]
    assert looked_up == [0, 1, 3, 7, 15, 23]


def test_a_record_that_no_agent_wrote_is_looked_up_ever_more_rarely_too() -> None:
    pool = Pool()
    pool.loads["bogus"], pool.records["bogus"] = LOAD, Foreign("junk")
    looked_up = [now for now in range(8) if pool.poll(float(now))]
    assert looked_up == [0, 1, 3, 7]
    assert pool.tally.foreign == 4


def test_a_worker_is_looked_up_at_once_when_its_epoch_or_its_facts_change() -> None:
    pool = Pool()
    pool.loads["w"] = LOAD
    for now in range(8):
        pool.poll(float(now))
    pool.register("w", epoch=2)
    assert pool.poll(8.0) == ["w"]
    assert pool.poll(9.0) == []
    pool.register("w", epoch=2, facts=2)
    assert pool.poll(10.0) == ["w"]


def test_fields_without_a_record_take_no_workers_place() -> None:
    pool = Pool()
    pool.loads |= {f"bogus-{n}": LOAD for n in range(20)}
    pool.poll(0.0)
    pool.register("a")
    pool.register("b")
    pool.poll(1.0)
    assert pool.workers() == {"a", "b"}


def test_no_more_workers_are_admitted_than_allowed_and_one_that_goes_makes_room() -> None:
    pool = Pool()
    for worker in ("a", "b", "c"):
        pool.register(worker)
    pool.poll(0.0)
    assert pool.workers() == {"a", "b"}
    del pool.loads["a"]
    for now in range(1, 20):
        pool.beat()
        pool.poll(float(now))
    assert pool.workers() == {"b", "c"}
    assert pool.members.admitted == 2


def test_a_worker_that_restarts_needs_no_second_place() -> None:
    pool = Pool()
    pool.register("a")
    pool.register("b")
    pool.poll(0.0)
    pool.register("a", epoch=7)
    pool.poll(1.0)
    assert pool.view.slot_of("a", 7) is not None
    assert pool.members.admitted == 2
    assert {(fence.worker, fence.epoch) for fence in pool.fences} == {("a", 7), ("b", 1)}


def test_fields_without_a_worker_are_forgotten_once_they_are_not_listed_and_workers_after_a_grace() -> None:
    pool = Pool()
    pool.register("a")
    pool.loads["bogus"] = LOAD
    pool.poll(0.0)
    pool.loads.clear()
    pool.poll(1.0)
    assert set(pool.members._members) == {"a"}
    pool.poll(6.0)
    assert set(pool.members._members) == set()
    assert pool.workers() == set()
    assert pool.members.admitted == 0


def test_a_stalled_member_is_looked_up_for_removal_ever_more_rarely() -> None:
    pool = Pool()
    pool.register("a")
    pool.poll(0.0)
    removable = {}
    for now in range(1, 47):
        pool.poll(float(now))
        removable[now] = [member.worker for member in pool.members.retire_stalled(float(now))]
    assert [now for now, members in removable.items() if members] == [31, 32, 34, 38, 46]
    assert pool.workers() == set()


def test_a_stalled_worker_whose_beat_moves_again_is_looked_up_at_once() -> None:
    pool = Pool()
    pool.register("a")
    for now in range(36):
        pool.poll(float(now))
        pool.members.retire_stalled(float(now))
    assert pool.workers() == set()
    pool.beat()
    assert pool.poll(36.0) == ["a"]
    assert pool.workers() == {"a"}


def test_where_the_hash_is_read_in_pages_fields_are_forgotten_once_a_whole_round_has_not_shown_them() -> None:
    pool = Pool()
    pool.register("a")
    pool.poll(0.0)
    pages: list[tuple[list[str], bool]] = [(["x"], False), (["y"], True), ([], False), (["y"], True)]
    remembered = []
    for now, (page, ends) in enumerate(pages, start=1):
        loads = dict.fromkeys(["a", *page], LOAD.pack())
        pool.members.note(loads, float(now), ends)
        pool.members.retire_missing(float(now))
        remembered.append(set(pool.members._members))
    assert remembered == [{"a", "x"}, {"a", "x", "y"}, {"a", "x", "y"}, {"a", "y"}]
    assert pool.members.workers() == ["a"]


def test_no_more_fields_are_remembered_than_allowed() -> None:
    pool = Pool(replace(SETTINGS, max_fields=10))
    pool.loads |= {f"bogus-{n}": LOAD for n in range(50)}
    pool.poll(0.0)
    assert len(pool.members._members) == 10
