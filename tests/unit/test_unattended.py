"""What Kubernetes says of a pool and what agents say, in one view."""

from __future__ import annotations

from picker.fleet.unattended import PoolEndpoint, Unattended
from picker.fleet.view import View
from picker.scheduling.decision import Refused, Step
from picker.scheduling.eligibility import eligible
from tests.unit.fleets import Load, Worker, fleet, slot_at
from tests.unit.test_decide import request, route

ONE, TWO, THREE = "10.0.0.0:8000", "10.0.0.1:8000", "10.0.0.2:8000"


def pod(name: str, address: str, incarnation: str = "uid 0", **labels: str) -> PoolEndpoint:
    return PoolEndpoint(name, address, incarnation, labels)


def endpoints(view: View, model: str = "llama") -> set[str]:
    found = eligible(request(model=model), view, 1.0)
    if isinstance(found, Refused):
        return set()
    return {facts.endpoint for slot, facts in view.roster().items() if found[slot]}


def test_endpoints_without_an_agent_may_be_picked_for_any_model() -> None:
    view = View()
    Unattended(view).take([pod("a", ONE), pod("b", TWO)], 0.0)
    assert endpoints(view, "anything") == {ONE, TWO} == set(view.usable_endpoints())
    assert view.base_and_adapter("anything") == ("anything", "")


def test_an_endpoint_of_an_agent_is_the_agents_worker_and_counts_once() -> None:
    view = fleet(1)
    unattended = Unattended(view)
    unattended.take([pod("a", ONE), pod("b", TWO)], 0.0)
    assert unattended.names() == ["b"]
    assert len(view.roster()) == 2
    assert endpoints(view, "llama") == {ONE, TWO}
    assert endpoints(view, "other") == {TWO}, "an agent says what its worker serves"
    assert view.base_and_adapter("llama") == ("llama", "")


def test_an_agent_that_comes_takes_over_and_one_that_goes_leaves_the_endpoint_in_the_picks() -> None:
    view = View()
    unattended = Unattended(view)
    unattended.take([pod("a", ONE)], 0.0)
    slot = view.admit(Worker("agents-name", endpoint=ONE), 1.0)
    unattended.look(1.0)
    assert (unattended.names(), list(view.slots())) == ([], [slot])
    view.retire(slot)
    unattended.look(2.0)
    assert unattended.names() == ["a"]
    assert endpoints(view) == {ONE}


def test_an_agent_that_uses_the_pods_name_takes_its_slot_and_is_left_alone() -> None:
    view = View()
    unattended = Unattended(view)
    unattended.take([pod("a", ONE)], 0.0)
    slot = view.admit(Worker("a", endpoint=ONE), 1.0)
    unattended.look(1.0)
    assert (unattended.names(), list(view.slots())) == ([], [slot])
    view.admit(Worker("b", endpoint=THREE), 1.0)
    unattended.take([pod("b", TWO)], 2.0)
    assert unattended.names() == [], "the name is an agent's, at another endpoint"
    assert view.slot_of("b", 1) is not None


def test_workers_that_the_pool_does_not_have_are_left_out_and_told_of() -> None:
    view = fleet(2)
    unattended = Unattended(view)
    unattended.take([pod("a", ONE)], 0.0)
    assert endpoints(view) == {ONE} == set(view.usable_endpoints())
    steps: list[Step] = []
    eligible(request(), view, 1.0, steps)
    assert steps[-1][0] == "pool"
    view.admit(Worker("late", endpoint=THREE), 1.0)
    assert endpoints(view) == {ONE}
    unattended.take([pod("a", ONE), pod("b", TWO), pod("c", THREE)], 2.0)
    assert endpoints(view) == {ONE, TWO, THREE}


def test_what_leaves_the_pool_leaves_the_picks() -> None:
    view = View()
    unattended = Unattended(view)
    unattended.take([pod("a", ONE), pod("b", TWO)], 0.0)
    unattended.take([pod("b", TWO)], 1.0)
    assert endpoints(view) == {TWO}
    unattended.take([], 2.0)
    assert view.usable_endpoints() == ()


def test_they_do_not_become_stale_while_agents_are_heard() -> None:
    view = fleet(1)
    Unattended(view).take([pod("a", ONE), pod("b", TWO)], 0.0)
    for second in range(100):
        view.update_load(slot_at(view, ONE), Load(beat=second), float(second))
    assert endpoints(view) == {ONE, TWO}
    assert view.all_fresh()


def test_load_and_prefixes_are_what_was_placed_there() -> None:
    view = View()
    Unattended(view).take([pod("a", ONE), pod("b", TWO)], 0.0)
    slot, same, other = slot_at(view, ONE), request(chain_id=1), request(chain_id=2)
    booking = view.place(slot, same.chain, True, 1.0, 6400, 0.0)
    assert route(view, other).endpoints[0] == TWO
    assert view.hit_blocks(same.chain)[slot] == len(same.chain)
    view.inflight.release(booking, 1.0)
    assert route(view, same, now=60.0).endpoints[0] == ONE


def test_a_container_that_starts_anew_is_a_new_epoch_and_pickers_agree_on_it() -> None:
    assert pod("a", ONE, "uid 0").epoch == pod("a", ONE, "uid 0").epoch
    assert len({pod("a", ONE, "uid 0").epoch, pod("a", ONE, "uid 1").epoch, pod("b", TWO, "uid 0").epoch}) == 3
    view = View()
    unattended = Unattended(view)
    unattended.take([pod("a", ONE, "uid 0")], 0.0)
    chain = [1, 2, 3]
    view.place(slot_at(view, ONE), chain, True, 1.0, 200, 0.0)
    unattended.take([pod("a", ONE, "uid 1")], 1.0)
    assert view.hit_blocks(chain).max() == 0


def test_a_cordon_holds_by_name_and_by_endpoint_with_and_without_an_agent() -> None:
    for cordoned in ("a", ONE):
        view = View()
        view.cordon([cordoned])
        unattended = Unattended(view)
        unattended.take([pod("a", ONE), pod("b", TWO)], 0.0)
        assert endpoints(view) == {TWO}
    slot = view.admit(Worker("another", endpoint=ONE), 1.0)
    unattended.look(1.0)
    assert endpoints(view) == {TWO}
    assert view.cordoned[slot]


def test_labels_of_pods_are_labels_of_workers() -> None:
    view = View()
    Unattended(view).take([pod("a", ONE, zone="north"), pod("b", TWO, zone="south")], 0.0)
    assert view.labelled("zone", frozenset({"north"})).sum() == 1
