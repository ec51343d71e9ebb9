"""Which worker prefills and which decodes."""

from random import Random

from picker.config import Config
from picker.fleet.view import View
from picker.placing import Placement, Placer
from picker.scheduling.decision import Decision, Reason, Refused, Routed
from picker.scheduling.disaggregation import Disaggregation, decide_stages
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Worker, endpoint
from tests.unit.test_decide import DELAY, MODEL, OTHER, request

ROLES = Disaggregation(min_new_tokens=2048)
LABEL = ROLES.label


def fleet_of(*roles: str | None) -> View:
    view = View()
    for number, role in enumerate(roles):
        labels = {LABEL: role} if role else {}
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), labels=labels), now=0.0)
        view.index.trust(slot, True)
    return view


def stages(view: View, wanted: SchedulingRequest, seed: int = 0) -> tuple[Decision, Routed | None]:
    return decide_stages(wanted, ROLES, view, DELAY, MODEL, 0.0, Random(seed), 2)


def slots(view: View, wanted: SchedulingRequest) -> set[tuple[int, int | None]]:
    found = set()
    for seed in range(30):
        decode, prefill = stages(view, wanted, seed)
        assert isinstance(decode, Routed)
        found.add((decode.slots[0], prefill.slots[0] if prefill else None))
    return found


def test_a_long_cold_prompt_is_computed_on_one_worker_and_answered_by_another() -> None:
    assert slots(fleet_of("prefill", "decode"), request(tokens=6400)) == {(1, 0)}


def test_what_the_decode_worker_holds_needs_no_hop() -> None:
    view = fleet_of("prefill", "decode")
    view.index.store(1, request().chain[:80])
    assert slots(view, request(tokens=6400)) == {(1, None)}


def test_a_short_prompt_needs_no_hop() -> None:
    assert slots(fleet_of("prefill", "decode"), request(tokens=1280)) == {(1, None)}


def test_workers_without_a_role_do_both_and_prefill_for_others_when_they_are_free() -> None:
    view = fleet_of(None, "decode")
    view.place(0, [OTHER], True, 3.0, 64, now=0.0)
    assert slots(view, request()) == {(1, 0)}
    assert slots(fleet_of(None), request()) == {(0, None)}


def test_without_a_prefill_worker_the_decode_worker_does_it_all() -> None:
    assert slots(fleet_of("decode", "decode"), request()) == {(0, None), (1, None)}


def test_prefill_workers_alone_serve_nothing() -> None:
    decision, prefill = stages(fleet_of("prefill", "prefill"), request())
    assert (decision, prefill) == (Refused(Reason.NOT_READY, {"role": 2}), None)


def test_prefill_workers_are_chosen_by_what_they_hold_and_owe() -> None:
    view = fleet_of("prefill", "prefill", "decode")
    view.index.store(1, request().chain[:90])
    assert slots(view, request()) == {(2, 1)}
    view.place(1, [OTHER], True, 5.0, 64, now=0.0)
    assert slots(view, request()) == {(2, 0)}


def test_the_gateways_subset_restricts_who_answers_and_not_who_prefills() -> None:
    view = fleet_of("prefill", "decode", "decode")
    assert slots(view, request(subset=frozenset({endpoint(2)}))) == {(2, 0)}


def test_both_workers_are_booked_and_the_prefill_until_the_answer_begins() -> None:
    view = fleet_of("prefill", "decode")
    placer = Placer(Config(disaggregation=ROLES), view)
    placed = placer.place(request(), now=0.0)
    assert isinstance(placed, Placement)
    assert view.inflight.requests[:2].tolist() == [1, 1]
    assert view.inflight.prefill_s[0] > 0
    assert view.inflight.prefill_s[1] == 0
    placer.answered(placed, 200, "", now=0.5)
    assert view.inflight.requests[:2].tolist() == [0, 1]
    placer.release(placed, now=1.0)
    placer.release(placed, now=1.0)
    assert view.inflight.requests[:2].tolist() == [0, 0]


def test_one_that_never_answers_is_released_everywhere() -> None:
    view = fleet_of("prefill", "decode")
    placer = Placer(Config(disaggregation=ROLES), view)
    placed = placer.place(request(), now=0.0)
    assert isinstance(placed, Placement)
    placer.release(placed, now=1.0)
    assert not view.inflight.requests.any()
    assert not view.inflight.prefill_s.any()
