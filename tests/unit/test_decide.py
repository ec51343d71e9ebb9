"""The decision: who may serve, who is chosen, who comes next."""

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.fleet.view import View
from picker.scheduling.decide import FALLBACKS, decide
from picker.scheduling.decision import MESSAGE, STATUS, Reason, Refused, Routed, Step, ruled_out
from picker.scheduling.eligibility import eligible
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES
from picker.scheduling.policies.situation import Situation
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Load, Worker, endpoint, fleet, slot_at

OTHER = 999_999
"""A block of nobody else's prompt."""
MODEL = WorkerModel()
DELAY = POLICIES["expected-delay"]
every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))


def request(tokens: int = 6400, chain_id: int = 0, output: int = 200, **fields: object) -> SchedulingRequest:
    """A request for the fleet's model; requests of one `chain_id` share a prefix."""
    chain = [chain_id * 1_000_000 + block for block in range(1, tokens // 64 + 1)]
    return SchedulingRequest(
        **{  # type: ignore[arg-type]
            "sequence": 0,
            "model": "llama",
            "prompt_tokens": tokens,
            "expected_output_tokens": output,
            "chain": chain,
            **fields,
        }
    )


def route(view: View, wanted: SchedulingRequest, policy: str = DELAY.name, now: float = 0.0, seed: int = 0) -> Routed:
    decision = decide(wanted, view, POLICIES[policy], MODEL, now, Random(seed))
    assert isinstance(decision, Routed)
    return decision


def exclusions(wanted: SchedulingRequest, view: View, now: float = 0.0) -> Iterator[Step]:
    """Who is ruled out by what."""
    steps: list[Step] = []
    eligible(wanted, view, now, steps)
    return ruled_out(view.known, steps)


def send(view: View, wanted: SchedulingRequest, now: float = 0.0, seed: int = 0, policy: str = DELAY.name) -> int:
    """Decides and books, as the server does; the winner's slot."""
    decision = route(view, wanted, policy, now, seed)
    slot = decision.slots[0]
    view.place(slot, wanted.chain, wanted.exact, decision.work_s, wanted.prompt_tokens, now)
    return slot


_REMEMBERED = ("_fresh", "_speed")
"""What follows from other arrays and is kept until they change."""


def arrays_of(view: View) -> Iterator[tuple[str, np.ndarray]]:
    for holder in (view, view.inflight):
        for name, value in vars(holder).items():
            if isinstance(value, np.ndarray) and name not in _REMEMBERED:
                yield f"{type(holder).__name__}.{name}", value


busy_fleets = st.lists(
    st.tuples(st.sampled_from(["ready", "loading", "draining"]), st.integers(0, 5), st.integers(0, 5_000_000)),
    min_size=1,
    max_size=8,
)


def busy_fleet(workers: list[tuple[str, int, int]]) -> View:
    view = View(capacity=4)
    for number, (state, bookings, tokens) in enumerate(workers):
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), state=state), now=0.0)
        view.index.trust(slot, True)
        for booking in range(bookings):
            view.place(slot, [number * 100 + booking], True, tokens / 41_000, tokens, now=float(booking))
    return view


# Who may serve.


@every_policy
@given(workers=busy_fleets, seed=st.integers(0, 99), subset=st.none() | st.frozensets(st.integers(0, 9).map(endpoint)))
def test_only_an_eligible_worker_is_chosen(policy, workers, seed, subset) -> None:  # type: ignore[no-untyped-def]
    view = busy_fleet(workers)
    decision = decide(request(subset=subset), view, policy, MODEL, 10.0, Random(seed))
    may = {
        endpoint(number)
        for number, (state, *_) in enumerate(workers)
        if state == "ready" and (subset is None or endpoint(number) in subset)
    }
    if isinstance(decision, Refused):
        assert not may
    else:
        assert set(decision.endpoints) <= may
        assert len(decision.endpoints) == min(1 + FALLBACKS, len(may))


def stale(view: View) -> View:
    for now, slot in itertools.product((0.0, 100.0), view.slots()):
        view.update_load(slot, Load(beat=1), now)
    return view


def test_workers_that_are_not_heard_are_picked_only_if_nobody_is() -> None:
    view = stale(fleet(2))
    assert len(route(view, request()).endpoints) == 2
    view.update_load(1, Load(beat=2), 100.0)
    assert route(view, request()).endpoints == (endpoint(1),)


REFUSALS = {
    "nobody is known": (View(), request(), Reason.NO_WORKERS, {}),
    "nobody is known for a request without a model": (View(), request(model=None), Reason.NO_WORKERS, {}),
    "no such model": (fleet(2), request(model="gpt"), Reason.UNKNOWN_MODEL, {"model": 2}),
    "no such model, whoever is ready": (
        fleet(2, state="loading"),
        request(model="gpt"),
        Reason.UNKNOWN_MODEL,
        {"model": 2},
    ),
    "nobody is ready": (fleet(2, state="draining"), request(), Reason.NOT_READY, {"state": 2}),
    "subset elsewhere": (
        fleet(2),
        request(subset=frozenset({"1.1.1.1:1"})),
        Reason.SUBSET,
        {"subset": 2},
    ),
    "empty subset": (
        fleet(1),
        request(model=None, subset=frozenset()),
        Reason.SUBSET,
        {"subset": 1},
    ),
}


@pytest.mark.parametrize(("view", "wanted", "reason", "excluded"), REFUSALS.values(), ids=list(REFUSALS))
def test_a_refusal_names_the_rule_that_left_nobody(
    view: View, wanted: SchedulingRequest, reason: Reason, excluded: dict[str, int]
) -> None:
    assert decide(wanted, view, DELAY, MODEL, 0.0, Random(0)) == Refused(reason, excluded)


def test_every_reason_has_a_status_and_a_message() -> None:
    assert set(STATUS) == set(MESSAGE) == set(Reason)


def test_a_request_without_a_model_may_go_anywhere_ready() -> None:
    view = fleet(2)
    view.admit(Worker("other", endpoint="1.1.1.1:1", models=("gpt",)), now=0.0)
    seen = {route(view, request(model=None), seed=seed).endpoints[0] for seed in range(50)}
    assert seen == {endpoint(0), endpoint(1), "1.1.1.1:1"}


def test_an_adapter_is_served_where_it_is_loaded() -> None:
    view = fleet(3)
    slot = slot_at(view, endpoint(1))
    view.update_facts(slot, Worker("w1", endpoint=endpoint(1), adapters=("sql",)))
    assert route(view, request(model="sql")).slots == (slot,)


def test_workers_that_have_failed_a_request_are_taken_only_where_there_are_no_others() -> None:
    view = fleet(3)
    view.index.store(slot_at(view, endpoint(0)), request().chain)
    failed = frozenset({endpoint(0), endpoint(1)})
    assert route(view, request(avoid=failed)).endpoints == (endpoint(2),)
    assert route(view, request(avoid=failed | {endpoint(2)})).endpoints[0] == endpoint(0)
    assert set(route(view, request(avoid=failed, subset=failed)).endpoints) == failed


# Who is chosen.


@every_policy
@given(workers=busy_fleets, seed=st.integers(0, 2**32))
def test_same_input_and_seed_give_the_same_decision(policy, workers, seed) -> None:  # type: ignore[no-untyped-def]
    one, other = (decide(request(), busy_fleet(workers), policy, MODEL, 10.0, Random(seed)) for _ in range(2))
    if isinstance(one, Refused) or isinstance(other, Refused):
        assert one == other
    else:
        assert (one.slots, one.endpoints, one.explain(6400)) == (other.slots, other.endpoints, other.explain(6400))


@every_policy
@given(workers=busy_fleets)
def test_a_decision_reads_the_view_and_leaves_it_alone(policy, workers) -> None:  # type: ignore[no-untyped-def]
    view = busy_fleet(workers)
    before = {name: array.copy() for name, array in arrays_of(view)}
    placed, version = repr(view), view.version
    decide(request(), view, policy, MODEL, 10.0, Random(0))
    for name, array in arrays_of(view):
        assert np.array_equal(array, before[name]), name
    assert (repr(view), view.version) == (placed, version)


@every_policy
@given(
    workers=busy_fleets,
    tokens=st.sampled_from([0, 1, 63, 64, 10**6, 10**9, 2**40]),
    output=st.sampled_from([0, 256, 10**9]),
    now=st.floats(10.0, 1e9),
)
def test_terms_are_finite_and_one_for_each_slot(policy, workers, tokens, output, now) -> None:  # type: ignore[no-untyped-def]
    view = busy_fleet(workers)
    wanted = msgspec.structs.replace(request(tokens=64, output=output), prompt_tokens=tokens)
    hits = view.hit_blocks(wanted.chain) * 64
    candidates = eligible(wanted, view, 0.0)
    if isinstance(candidates, Refused):
        candidates = view.known
    situation = Situation(
        wanted, view, candidates, hits, MODEL.prefill_s(tokens, hits), MODEL, now, view.inflight.outstanding(now)
    )
    terms = policy.terms(situation)
    for name, values in terms.items():
        assert values.shape == view.known.shape, name
        assert np.isfinite(values).all(), name
        assert (values >= 0).all(), name


@every_policy
@given(workers=busy_fleets, seed=st.integers(0, 99))
def test_fallbacks_are_distinct_and_in_order_of_cost(policy, workers, seed) -> None:  # type: ignore[no-untyped-def]
    decision = decide(request(), busy_fleet(workers), policy, MODEL, 10.0, Random(seed))
    if isinstance(decision, Refused):
        return
    costs = [decision.cost(rank) for rank in range(len(decision.slots))]
    assert costs == sorted(costs)
    assert len(set(decision.slots)) == len(decision.slots) <= 3
    everybody = sum(decision.terms.values())
    may = np.flatnonzero(busy_fleet(workers).ready)
    assert costs == sorted(everybody[may].tolist())[: len(costs)]


def test_ranks_behind_one_endpoint_are_one_fallback() -> None:
    view = View()
    for rank in range(3):
        view.admit(Worker(f"w/{rank}", endpoint="10.0.0.1:8000"), now=0.0)
    assert route(view, request()).endpoints == ("10.0.0.1:8000",)


def test_equals_get_equal_shares() -> None:
    view, rng, workers, rounds = fleet(8), Random(7), 8, 4000
    for rank in (0, 1, 2):
        counts = Counter[int]()
        for _ in range(rounds):
            decision = decide(request(), view, DELAY, MODEL, 0.0, rng)
            assert isinstance(decision, Routed)
            counts[decision.slots[rank]] += 1
        expected = rounds / workers
        # 7 degrees of freedom: 40 is exceeded once in a million.
        assert sum((counts[slot] - expected) ** 2 / expected for slot in view.slots()) < 40


def test_equals_share_evenly_beside_costlier_ones() -> None:
    view = fleet(5)
    for slot in (0, 2, 4):
        view.place(slot, [OTHER], True, 5.0, 6400, now=0.0)
    counts = Counter(route(view, request(), seed=seed).slots[0] for seed in range(400))
    assert set(counts) == {1, 3}
    assert min(counts.values()) > 140


@given(st.permutations(range(6)))
def test_the_order_in_which_workers_came_does_not_matter(order: list[int]) -> None:
    loads = [3, 0, 2, 5, 1, 4]
    view = View(capacity=4)
    for number in order:
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number)), now=0.0)
        for booking in range(loads[number]):
            view.place(slot, [number * 100 + booking], True, 0.5, 20_000, now=0.0)
    assert route(view, request()).endpoints == (endpoint(1), endpoint(4), endpoint(2))


def test_an_idle_worker_that_holds_the_prefix_beats_idle_ones_that_do_not() -> None:
    view = fleet(8)
    wanted = request()
    holder = slot_at(view, endpoint(5))
    view.index.store(holder, wanted.chain[:50])
    for seed in range(20):
        decision = route(view, wanted, seed=seed)
        assert decision.slots[0] == holder
        assert decision.hit_tokens == 3200


def test_of_two_holders_the_deeper_one_wins() -> None:
    view = fleet(3)
    view.index.store(1, request().chain[:40])
    view.index.store(2, request().chain[:41])
    assert route(view, request()).slots[:2] == (2, 1)


def test_a_holder_that_is_not_trusted_gets_no_credit() -> None:
    view = fleet(4)
    view.index.store(2, request().chain)
    view.index.trust(2, False)
    assert len({route(view, request(), seed=seed).slots[0] for seed in range(50)}) == 4


@pytest.mark.parametrize(("queued_s", "goes_to_the_holder"), [(0.05, True), (0.2, True), (3.0, False)])
def test_a_loaded_holder_keeps_a_prompt_only_while_the_wait_is_worth_it(
    queued_s: float, goes_to_the_holder: bool
) -> None:
    view = fleet(2)
    holder = slot_at(view, endpoint(0))
    view.index.store(holder, request().chain)
    view.place(holder, [OTHER], True, queued_s, 6400, now=0.0)
    assert (route(view, request()).slots[0] == holder) == goes_to_the_holder


def test_a_debt_shrinks_as_it_is_worked_off() -> None:
    view = fleet(2)
    holder = slot_at(view, endpoint(0))
    view.index.store(holder, request().chain)
    view.place(holder, [OTHER], True, 3.0, 6400, now=0.0)
    wanted = request(output=20)
    assert route(view, wanted, now=0.0).slots[0] != holder
    assert route(view, wanted, now=2.9).slots[0] == holder


def test_a_worker_that_gives_no_token_for_long_is_avoided_even_by_what_it_holds() -> None:
    view = fleet(2)
    stuck = slot_at(view, endpoint(0))
    view.index.store(stuck, request().chain)
    view.place(stuck, [OTHER], True, 0.1, 6400, now=0.0)
    assert route(view, request(), now=1.0).slots[0] == stuck
    assert route(view, request(), now=10.0).slots[0] != stuck


def test_a_long_answer_to_a_cached_prompt_does_not_make_a_worker_look_stuck() -> None:
    view = fleet(2)
    holder = slot_at(view, endpoint(0))
    view.index.store(holder, request().chain)
    assert send(view, request(), now=0.0) == holder
    assert send(view, request(), now=30.0) == holder


def test_the_terms_are_the_formula() -> None:
    view = fleet(1)
    for number in range(3):
        booking = view.inflight.book(0, 10.0, 50_000, None, now=0.0)
        if number:
            booking.is_answered = True
            view.inflight.release(booking, now=0.0)
    wanted = request(tokens=6400, output=100)
    terms = {name: values[0] for name, values in route(view, wanted, now=2.0).terms.items()}
    work = 6400 / 41_000 + 1e-9 * 6400 * 3200 + 0.007
    # Thirty seconds of work in the last fifteen: as busy as counts.
    decode = 100 * (0.007 + 20e-6 + 6.5e-8 * 50_000) / (1 - 0.9)
    harm = 1 / 5 * (work + 100 * (20e-6 + 6.5e-8 * 6400))
    wait = (10.0 - 2.0) + 0.007 / 2
    assert terms == pytest.approx({"wait": wait, "work": work, "cache": 1.2 * work, "harm": harm, "decode": decode})


def test_a_slow_worker_gets_less() -> None:
    view = fleet(2)
    for step in range(30):
        for slot, seconds in zip(view.slots(), (3.0, 0.5), strict=True):
            booking = view.inflight.book(slot, 0.5, 100, None, float(step * 10))
            view.inflight.first_token(booking, step * 10 + seconds)
            view.inflight.release(booking, step * 10 + seconds)
    assert {route(view, request(), now=1000.0, seed=seed).slots[0] for seed in range(20)} == {list(view.slots())[1]}


def test_a_burst_of_different_prompts_spreads_evenly() -> None:
    view = fleet(8)
    counts = Counter(send(view, request(chain_id=number), seed=number) for number in range(64))
    assert set(counts.values()) == {8}


def test_a_burst_of_prompts_without_a_chain_spreads_evenly() -> None:
    view = fleet(8)
    counts = Counter(send(view, request(tokens=40), seed=number) for number in range(64))
    assert set(counts.values()) == {8}


def test_a_small_burst_of_one_prompt_is_computed_once() -> None:
    view = fleet(8)
    assert len({send(view, request(output=20), seed=number) for number in range(6)}) == 1


def test_a_small_burst_of_one_prompt_with_long_answers_is_computed_by_few() -> None:
    view = fleet(8)
    assert len({send(view, request(output=200), seed=number) for number in range(6)}) <= 3


def test_a_big_burst_of_one_prompt_overflows_to_one_worker_after_another() -> None:
    view = fleet(8)
    winners = [send(view, request(output=20), seed=number) for number in range(40)]
    first_run = len(list(itertools.takewhile(lambda slot: slot == winners[0], winners)))
    assert 4 <= first_run < 40
    # Whoever computes the prompt gets a good share of what follows: it does not scatter.
    assert min(Counter(winners).values()) >= 4
    assert len(set(winners)) <= 4


def test_the_turns_of_conversations_stay_together_among_others() -> None:
    view, now = fleet(8), 0.0
    home: dict[int, set[int]] = {}
    for turn, conversation in itertools.product(range(1, 9), range(16)):
        now += 0.5
        wanted = request(tokens=2048 * turn, chain_id=conversation)
        decision = route(view, wanted, now=now, seed=turn)
        slot = decision.slots[0]
        booking = view.place(slot, wanted.chain, True, decision.work_s, wanted.prompt_tokens, now)
        view.index.store(slot, wanted.chain)
        view.inflight.announced(slot, wanted.chain[-1], now + decision.work_s)
        view.inflight.release(booking, now + decision.work_s)
        home.setdefault(conversation, set()).add(slot)
    assert all(len(slots) == 1 for slots in home.values())
    assert len(set().union(*home.values())) == 8


# The other policies.


def test_round_robin_takes_the_eligible_in_turn() -> None:
    view = fleet(4)
    view.update_facts(slot_at(view, endpoint(1)), Worker("w1", endpoint=endpoint(1), state="draining"))
    took = [route(view, request(sequence=number), "round-robin", seed=number).endpoints for number in range(6)]
    turns = [endpoint(0), endpoint(2), endpoint(3)]
    assert [endpoints[0] for endpoints in took] == turns * 2
    assert took[1] == (endpoint(2), endpoint(3), endpoint(0))


def test_random_ignores_load_and_prefix() -> None:
    view = fleet(4)
    view.index.store(0, request().chain)
    view.place(1, [OTHER], True, 100.0, 6400, now=0.0)
    counts = Counter(route(view, request(), "random", seed=seed).slots[0] for seed in range(2000))
    assert min(counts.values()) > 400
    assert max(counts.values()) < 600


def test_least_request_counts_requests_only() -> None:
    view = fleet(3)
    view.place(0, [OTHER], True, 0.001, 10, now=0.0)
    view.place(0, [8], True, 0.001, 10, now=0.0)
    view.place(1, [7], True, 100.0, 6400, now=0.0)
    assert route(view, request(), "least-request").slots == (2, 1, 0)


def test_an_explanation_says_what_the_cost_is_the_sum_of() -> None:
    view = fleet(2)
    decision = route(view, request())
    parts = dict(part.split("=") for part in decision.explain(6400).split())
    assert parts.pop("policy") == "expected-delay"
    assert parts.pop("hit") == "0/6400"
    assert float(parts.pop("next")) >= float(parts["cost"])
    cost = float(parts.pop("cost"))
    assert set(parts) == {"wait", "work", "cache", "harm", "decode"}
    assert sum(map(float, parts.values())) == pytest.approx(cost, abs=0.003)


# The model of a worker.


@given(st.integers(0, 10**6), st.lists(st.integers(0, 10**6), min_size=2, max_size=2))
def test_more_cached_is_never_more_work(tokens: int, hits: list[int]) -> None:
    less, more = MODEL.prefill_s(tokens, np.array(sorted(min(hit, tokens) for hit in hits)))
    # A step less may cost the attention over more context, no more than that.
    assert more <= less + 1e-9


def test_a_prompt_cached_whole_still_takes_a_step() -> None:
    assert MODEL.prefill_s(6400, np.array([6400]))[0] >= MODEL.step_s
