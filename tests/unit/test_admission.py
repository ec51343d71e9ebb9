"""Admission: room, deadlines, classes, the gate, and what refused clients are told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from picker.admission.control import Admitted
from picker.admission.entry import NEVER
from picker.admission.gate import ColdGate
from picker.admission.pace import LONGEST_RETRY_S, Pace, retry_after_s
from picker.admission.refusals import MESSAGE, STATUS, Cause, Turned
from picker.admission.room import WorkerRoom
from picker.admission.settings import AdmissionSettings, Bounds, ClassSettings, Gate, Room
from picker.admission.terms import STRANGERS, Rules
from picker.config_files import ConfigError, parse
from picker.fleet.turnover import Turnover
from picker.requests.model import Terms
from picker.scheduling.decision import Reason, Refused
from tests.unit.desks import MODEL, Desk, chain, crowd
from tests.unit.fleets import Load, endpoint, fleet, slot_at

TOKENS = 8000
COLD_S = MODEL.prefill_s(TOKENS, np.zeros(1, np.int64))[0]


class TestRoom:
    def test_an_idle_fleet_admits_at_once_even_the_longest_prompt(self) -> None:
        assert isinstance(Desk(fleet(1)).arrive(Desk(fleet(1)).entry(120_000), 0.0), Admitted)

    def test_room_is_measured_in_tokens_and_not_in_requests(self) -> None:
        desk = Desk(fleet(1))
        for number in range(7):
            assert isinstance(desk.arrive(desk.entry(960, chain(number, 960)), 0.0), Admitted)
        assert isinstance(desk.arrive(desk.entry(9_600, chain(90, 9_600)), 0.0), Admitted)
        assert desk.arrive(desk.entry(960, chain(91, 960)), 0.0) is None

    def test_a_little_dearer_worker_with_room_is_better_than_a_wait_and_a_far_dearer_one_is_not(self) -> None:
        desk = Desk(fleet(2))
        a, b = (slot_at(desk.view, endpoint(number)) for number in range(2))
        desk.view.kv_used[a] = 1.0
        desk.view.index.store(a, chain(1, 6400))
        verdict = desk.arrive(desk.entry(6500, chain(1, 6400)), 0.0)
        assert isinstance(verdict, Admitted) and verdict.decision.slots[0] == b
        assert verdict.decision.endpoints[0] == endpoint(1) and verdict.decision.hit_tokens == 0
        assert verdict.decision.work_s > 0.1
        desk.view.index.store(a, chain(2, 64_000))
        assert desk.arrive(desk.entry(64_100, chain(2, 64_000)), 0.0) is None

    def test_a_first_token_makes_room(self) -> None:
        desk = Desk(fleet(1))
        [first] = crowd(desk, 1)
        waits = desk.entry()
        assert desk.arrive(waits, 0.0) is None
        assert desk.dispatch(0.1) == []
        desk.view.inflight.announced(next(iter(desk.view.slots())), first.request.chain[-1], 0.2)
        [(entry, verdict)] = desk.dispatch(0.2)
        assert entry is waits and isinstance(verdict, Admitted)

    def test_what_other_pickers_have_placed_counts(self) -> None:
        one, other = Desk(fleet(1)), Desk(fleet(1))
        crowd(other, 1)
        share = other.view.inflight.share(other.view.epochs, 0.0)
        one.view.inflight.others.replace([(share, 0.0)], one.view.slots_of, 0.0)
        assert one.arrive(one.entry(), 0.0) is None

    def test_a_full_kv_cache_is_no_room_but_not_when_nobody_can_say_that_it_still_is(self) -> None:
        view = fleet(1)
        [slot] = view.slots()
        room = WorkerRoom(view, MODEL, Room())
        view.update_load(slot, Load(1, running=9, kv_used=0.96), 0.0)
        assert not room.is_at(slot, 0.0)
        view.is_live = False
        assert room.is_at(slot, 0.0)

    def test_where_nothing_shows_first_tokens_the_workers_word_counts(self) -> None:
        view = fleet(1, publishes_kv=False)
        [slot] = view.slots()
        room = WorkerRoom(view, MODEL, Room())
        view.place(slot, (), False, 10.0, 100_000, 0.0)
        view.update_load(slot, Load(1, running=1), 0.0)
        assert room.is_at(slot, 0.0)
        view.update_load(slot, Load(2, running=1, waiting=3), 0.0)
        assert not room.is_at(slot, 0.0)

    def test_a_worker_that_went_while_a_request_waited_for_it_holds_up_nobody(self) -> None:
        desk = Desk(fleet(2))
        crowd(desk, 2)
        assert desk.arrive(desk.entry(), 0.0) is None
        for slot in list(desk.view.slots())[:1]:
            desk.view.retire(slot)
        [slot] = desk.view.slots()
        desk.view.inflight.prefill_s[slot] = 0.0
        assert len(desk.dispatch(0.01)) == 1


class TestDeadlines:
    def test_who_has_waited_too_long_is_told_so(self) -> None:
        desk = Desk(fleet(1))
        crowd(desk, 1)
        assert desk.arrive(desk.entry(leave_at=5.0), 0.0) is None
        assert desk.dispatch(4.9) == []
        [(_, verdict)] = desk.dispatch(5.0)
        assert isinstance(verdict, Turned) and STATUS[verdict.cause] == 429

    def test_who_has_waited_too_long_for_any_worker_gets_503(self) -> None:
        desk = Desk(fleet(1))
        crowd(desk, 1)
        assert desk.arrive(desk.entry(), 0.0) is None
        desk.view.ready[:] = False
        [(_, verdict)] = desk.dispatch(0.3)
        assert verdict == Refused(Reason.NOT_READY, verdict.excluded)  # type: ignore[union-attr]

    def test_what_cannot_have_its_first_token_in_time_is_refused_and_not_placed(self) -> None:
        desk = Desk(fleet(1))
        prompt = desk.entry(8_000, chain(1, 8_000))
        desk.arrive(prompt, 0.0)
        late = desk.arrive(desk.entry(8_000, chain(2, 8_000), first_token_by=0.25), 0.0)
        assert isinstance(late, Turned) and late.cause is Cause.TOO_LATE
        assert isinstance(desk.arrive(desk.entry(8_000, chain(2, 8_000), first_token_by=0.6), 0.0), Admitted)

    def test_what_is_late_by_its_own_prefill_is_served_while_nobody_waits_and_not_otherwise(self) -> None:
        desk = Desk(fleet(1))
        assert isinstance(desk.arrive(desk.entry(30_000, chain(1, 30_000), first_token_by=0.5), 0.0), Admitted)
        assert desk.arrive(desk.entry(), 0.0) is None
        told = desk.arrive(desk.entry(30_000, chain(2, 30_000), first_token_by=0.7, rank=0), 0.0)
        assert isinstance(told, Turned) and told.cause is Cause.COLD
        assert told.retry_after_s >= 10

    def test_a_wait_ends_when_even_an_idle_worker_would_be_too_late(self) -> None:
        desk = Desk(fleet(1))
        crowd(desk, 1)
        waits = desk.entry(8_000, chain(2, 8_000), first_token_by=2.0)
        assert desk.arrive(waits, 0.0) is None
        assert 1.7 < waits.until < 1.9
        # Also of those for whom nobody has looked for a worker yet.
        behind = desk.entry(8_000, chain(3, 8_000), first_token_by=2.1)
        assert desk.arrive(behind, 0.0) is None
        assert behind.until == pytest.approx(waits.until + 0.1)
        [(_, verdict)] = desk.dispatch(waits.until)
        assert isinstance(verdict, Turned) and verdict.cause is Cause.TOO_LATE

    def test_who_would_still_wait_when_its_time_is_up_is_refused_at_once(self) -> None:
        desk = Desk(fleet(1))
        [slot] = desk.view.slots()
        desk.view.kv_used[slot] = 1.0
        for number in range(20):
            assert desk.arrive(desk.entry(64, leave_at=90.0, tenant="a"), number / 10) is None
        for tick in range(20):
            # One a second.
            desk.view.kv_used[slot] = 0.0
            for entry, verdict in desk.admission.dispatch(2.0 + tick):
                desk.book(entry, verdict, 2.0 + tick)
                desk.view.kv_used[slot] = 1.0
            if tick == 9:
                refused = desk.arrive(desk.entry(64, leave_at=16.0, tenant="a"), 12.0)
                assert isinstance(refused, Turned) and refused.cause is Cause.TOO_LATE
                assert refused.retry_after_s >= 8
                # A tenant that has nothing waiting has its turn sooner.
                assert desk.arrive(desk.entry(64, leave_at=16.0, tenant="b"), 12.0) is None


class TestBounds:
    SETTINGS = AdmissionSettings(
        classes=(ClassSettings(name="high", priority=1), ClassSettings(name="default", fill=0.5)),
        total=Bounds(requests=4),
        tenant=Bounds(requests=3),
    )

    def desk(self) -> Desk:
        desk = Desk(fleet(1), self.SETTINGS)
        crowd(desk, 1)
        return desk

    def test_a_class_with_less_of_the_queue_is_turned_away_first(self) -> None:
        desk = self.desk()
        verdicts = [desk.arrive(desk.entry(tenant=number), 0.0) for number in range(3)]
        assert verdicts[:2] == [None, None]
        assert isinstance(verdicts[2], Turned) and verdicts[2].cause is Cause.ALL_FULL
        assert [desk.arrive(desk.entry(tenant=number, rank=0), 0.0) for number in range(2)] == [None, None]

    def test_a_tenant_has_a_bound_of_its_own(self) -> None:
        desk = self.desk()
        verdicts = [desk.arrive(desk.entry(tenant="a", rank=0), 0.0) for _ in range(4)]
        assert isinstance(verdicts[3], Turned) and verdicts[3].cause is Cause.TENANT_FULL
        assert desk.arrive(desk.entry(tenant="b", rank=0), 0.0) is None

    def test_what_is_full_can_be_told_before_the_body_is_there(self) -> None:
        desk = self.desk()
        assert desk.admission.is_full(1, "a", 1000) is None
        for number in range(2):
            desk.arrive(desk.entry(tenant=number), 0.0)
        assert desk.admission.is_full(1, "a", 1000) is not None
        assert desk.admission.is_full(0, "a", 1000) is None


class TestScaleFromZero:
    SETTINGS = AdmissionSettings(classes=(ClassSettings(name="default", wait_for_workers_s=60.0),))

    def test_requests_wait_for_the_first_worker_and_go_at_once(self) -> None:
        desk = Desk(fleet(1, state="loading"), self.SETTINGS)
        entries = [desk.entry(rank=0, workers_by=60.0) for _ in range(3)]
        assert [desk.arrive(each, 0.0) for each in entries] == [None] * 3
        assert desk.dispatch(40.0) == []
        desk.view.ready[:1] = desk.view.known[:1] = True
        desk.view.ready[:] = desk.view.known
        assert [isinstance(verdict, Admitted) for _, verdict in desk.dispatch(40.1)] == [True] * 3

    def test_the_wait_is_bounded(self) -> None:
        desk = Desk(fleet(1, state="loading"), self.SETTINGS)
        assert desk.arrive(desk.entry(rank=0, workers_by=60.0), 0.0) is None
        [(_, verdict)] = desk.dispatch(60.0)
        assert isinstance(verdict, Turned) and STATUS[verdict.cause] == 503

    def test_a_class_that_may_not_wait_is_refused_at_once(self) -> None:
        desk = Desk(fleet(1, state="loading"))
        assert isinstance(desk.arrive(desk.entry(), 0.0), Refused)


class TestGate:
    def gate(self) -> ColdGate:
        gate = ColdGate(Gate(residence_s=20.0, lost=0.25, cached=0.5))
        for number in range(40):
            gate.placed(chain(number, 1280))
        return gate

    def test_sessions_that_have_lost_their_cache_stay_outside_while_caches_thrash(self) -> None:
        gate = self.gate()
        turns = [[*chain(number, 1280), -number - 1] for number in range(40)]
        assert all(gate.refuses(turn, 0, residence_s=10.0) for turn in turns)
        assert not any(gate.refuses(turn, 20, residence_s=10.0) for turn in turns[:3]), "a warm session"
        assert not any(gate.refuses(turn, 0, residence_s=30.0) for turn in turns), "caches that keep what they have"

    def test_traffic_that_shares_nothing_is_not_held_up_however_fast_caches_turn_over(self) -> None:
        gate = self.gate()
        assert not any(gate.refuses(chain(100 + number, 1280), 0, residence_s=1.0) for number in range(50))

    def test_memory_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("picker.admission.gate.MOST_PROMPTS", 10)
        assert len(self.gate()._ends) == 10

    def test_how_long_caches_keep_things_follows_from_what_engines_compute(self) -> None:
        turnover = Turnover()
        for second in range(60):
            turnover.computed(0, 1000, float(second))
        assert turnover.residence_s({0: 30_000}, 59.0) == pytest.approx(30, rel=0.1)
        assert turnover.residence_s({0: 30_000, 1: 30_000}, 59.0) == pytest.approx(60, rel=0.1)
        turnover.forget(0)
        assert turnover.residence_s({0: 30_000}, 59.0) == math.inf


class TestPace:
    @pytest.mark.parametrize(("wait_s", "least", "most"), [(1.0, 1, 2), (4.0, 4, 6), (25.0, 20, 30), (500.0, 20, 30)])
    def test_clients_come_back_when_it_makes_sense_and_not_together(self, wait_s: float, least: int, most: int) -> None:
        told = {retry_after_s(wait_s, chance / 100) for chance in range(100)}
        assert least <= min(told) < max(told) <= most <= LONGEST_RETRY_S

    @pytest.mark.parametrize("wait_s", [None, 0.0, 0.99])
    def test_nothing_is_told_where_nothing_is_known_or_the_wait_is_short(self, wait_s: float | None) -> None:
        assert retry_after_s(wait_s, 0.9) == 0

    def test_time_in_which_nobody_waits_does_not_count(self) -> None:
        pace = Pace()
        assert pace.served_s(1) is None
        pace.elapse(True, 0.0)
        for tenth in range(1, 51):
            pace.ended(is_served=tenth % 2 == 0)
            pace.elapse(True, tenth / 10)
        before = pace.served_s(10)
        assert before == pytest.approx(2.0, rel=0.15)
        assert pace.gone_s(10) == pytest.approx(1.0, rel=0.15)
        pace.elapse(False, 5.1)
        pace.elapse(False, 500.0)
        pace.elapse(True, 500.1)
        assert pace.served_s(10) == pytest.approx(before, rel=0.05)
        pace.elapse(True, 560.0)
        assert pace.served_s(1) is None


class TestRules:
    def test_clients_may_shorten_their_wait_and_not_lengthen_it(self) -> None:
        rules = Rules(AdmissionSettings(), 0, MODEL)
        rank = rules.default_rank
        assert rules.deadlines(rank, Terms(), TOKENS, 100.0).leave_at == 130.0
        assert rules.deadlines(rank, Terms(timeout_s=5.0), TOKENS, 100.0).leave_at == 105.0
        assert rules.deadlines(rank, Terms(timeout_s=500.0), TOKENS, 100.0).leave_at == 130.0

    def test_an_objective_grows_with_the_prompt_and_clients_may_shorten_it(self) -> None:
        settings = AdmissionSettings(classes=(ClassSettings(name="default", ttft_s=2.0, ttft_prefills=1.5),))
        due = Rules(settings, 0, MODEL).deadlines
        assert due(0, Terms(), TOKENS, 0.0).first_token_by == pytest.approx(2 + 1.5 * COLD_S)
        assert due(0, Terms(ttft_s=1.0), TOKENS, 0.0).first_token_by == 1.0
        assert due(0, Terms(ttft_s=9.0), TOKENS, 0.0).first_token_by == pytest.approx(2 + 1.5 * COLD_S)
        assert Rules(AdmissionSettings(), 0, MODEL).deadlines(0, Terms(), TOKENS, 0.0).first_token_by == NEVER

    def test_tenants_that_are_named_have_their_place_and_all_others_share_one(self) -> None:
        rules = Rules(AdmissionSettings(tenants={"gold": 3.0}), 7, MODEL)
        assert rules.tenant("gold") == "gold"
        assert {rules.tenant(f"id {number}") for number in range(100)} == {STRANGERS}

    def test_where_none_is_named_each_has_a_bucket_that_nobody_can_foresee(self) -> None:
        one, other = Rules(AdmissionSettings(), 7, MODEL), Rules(AdmissionSettings(), 8, MODEL)
        names = [f"id {number}" for number in range(500)]
        assert len({one.tenant(name) for name in names}) > 350
        assert [one.tenant(name) for name in names] != [other.tenant(name) for name in names]


def test_each_cause_has_a_status_and_a_message() -> None:
    assert {STATUS[cause] for cause in Cause} == {429, 503}
    assert all(MESSAGE[cause] for cause in Cause)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("default_class: urgent", "default_class 'urgent' is none of the classes interactive, default, batch"),
        ("classes: [{name: default}, {name: default}]", "two classes have the same name"),
        ("classes: [{name: default, share: 0.7}, {name: b, share: 0.7}]", "add up to more than 1"),
        ("tenant_from: cookie", "neither header nor metadata"),
        ("room: {tokens: 0}", "room.tokens"),
    ],
)
def test_settings_that_make_no_sense_are_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text, AdmissionSettings, "picker.yaml")


def test_the_workers_of_a_fleet_are_filled_before_anybody_waits() -> None:
    desk = Desk(fleet(3))
    crowd(desk, 3)
    assert {int(desk.view.inflight.requests[slot_at(desk.view, endpoint(number))]) for number in range(3)} == {1}
    assert desk.arrive(desk.entry(), 0.0) is None
