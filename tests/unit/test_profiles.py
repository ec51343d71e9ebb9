"""Profiles, requirements, limits, pools: what the configuration says about placement."""

from collections import Counter
from random import Random

import msgspec
import pytest

from picker.config import Config
from picker.config_checks import BadSetting, check
from picker.fleet.breakers import Breakers
from picker.fleet.view import CAPACITY, View
from picker.requests.headers import required_labels
from picker.scheduling.decide import decide, term_names
from picker.scheduling.decision import Reason, Refused, Routed
from picker.scheduling.policies import POLICIES
from picker.scheduling.profile import DEFAULT, Match, Profile, WorkerLimits, choose
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Load, Worker, endpoint
from tests.unit.test_decide import DELAY, MODEL, OTHER, exclusions, request, route


def fleet_of(*facts: dict[str, object], **settings: object) -> View:
    view = View(**settings)  # type: ignore[arg-type]
    for number, each in enumerate(facts):
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), **each), now=0.0)  # type: ignore[arg-type]
        view.index.trust(slot, True)
    return view


def with_labels(*labels: dict[str, str], **settings: object) -> View:
    return fleet_of(*({"labels": each} for each in labels), **settings)


def refusal(view: View, wanted: SchedulingRequest, now: float = 0.0) -> Refused:
    decision = decide(wanted, view, DELAY, MODEL, now, Random(0))
    assert isinstance(decision, Refused)
    return decision


def winners(view: View, wanted: SchedulingRequest, policy: str = DELAY.name) -> set[int]:
    return {route(view, wanted, policy, seed=seed).slots[0] for seed in range(40)}


# Which profile.


BATCH = Profile(name="batch", match=Match(objectives=("batch",)))
LONG = Profile(name="long", match=Match(min_prompt_tokens=32_000))
BOTH = Profile(name="both", match=Match(models=("llama",), tenants=("acme",), max_prompt_tokens=10))


@pytest.mark.parametrize(
    ("model", "tenant", "objective", "tokens", "expected"),
    [
        ("llama", "acme", "", 10, BOTH),
        ("llama", "acme", "", 11, DEFAULT),
        ("llama", "other", "", 10, DEFAULT),
        ("gpt", "acme", "", 10, DEFAULT),
        ("gpt", "", "batch", 10, BATCH),
        ("gpt", "", "batch", 99_000, BATCH),
        ("gpt", "", "", 32_000, LONG),
    ],
)
def test_the_first_profile_all_of_whose_conditions_hold_is_taken(
    model: str, tenant: str, objective: str, tokens: int, expected: Profile
) -> None:
    assert choose((BATCH, LONG, BOTH), model, tenant, objective, tokens) is expected


def test_profiles_are_read_from_the_configuration() -> None:
    written = {"profiles": [{"name": "batch", "match": {"objectives": ["batch"]}, "limits": {"running": 8}}]}
    [profile] = msgspec.convert(written, Config).profiles
    assert (profile.match.objectives, profile.limits.running) == (("batch",), 8)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        (
            Profile(name="p", policy="best"),
            r"profiles, 'p', policy: there is no policy 'best'; there are: ",
        ),
        (
            Profile(name="p", weights={"wat": 2.0}),
            r"'p', weights: expected-delay has no term wat; its terms are ",
        ),
    ],
)
def test_a_profile_that_makes_no_sense_is_named_at_the_start(profile: Profile, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        check(Config(profiles=(profile,)))


# Requirements.


def test_a_worker_without_a_required_label_is_ruled_out() -> None:
    view = with_labels({"gpu": "h100"}, {"gpu": "l4"}, {})
    assert winners(view, request(require={"gpu": ("h100", "h200")})) == {0}
    assert winners(view, request(profile=Profile(require={"gpu": ("l4",)}))) == {1}
    both = request(require={"gpu": ("h100",)}, profile=Profile(require={"gpu": ("l4",)}))
    assert refusal(view, both) == Refused(Reason.REQUIREMENTS, {"requirements": 3})


def test_engine_and_version_count_as_labels() -> None:
    view = fleet_of({"engine": "sglang"}, {"version": "0.9.0"})
    assert winners(view, request(require={"engine": ("sglang",)})) == {0}
    assert winners(view, request(require={"version": ("0.9.0",)})) == {1}


def test_a_label_called_model_is_no_model() -> None:
    view = with_labels({"model": "big"}, {"model": "llama"})
    assert winners(view, request()) == {0, 1}
    assert winners(view, request(require={"model": ("big",)})) == {0}


def test_headers_name_labels_only_where_the_configuration_says_so() -> None:
    headers = {"x-gpu": " h100, ,h200 ", "x-zone": "", "x-other": "a"}
    assert required_labels(headers, {"x-gpu": "gpu", "x-zone": "zone"}) == {"gpu": ("h100", "h200")}
    assert required_labels(headers, {}) == {}


# What fits.


def test_a_prompt_longer_than_every_context_is_the_clients_fault() -> None:
    view = fleet_of({"context_limit_tokens": 4096}, {"context_limit_tokens": 8192, "kv_capacity_tokens": 6000})
    assert winners(view, request(tokens=4095)) == {0, 1}
    assert winners(view, request(tokens=4096)) == {1}
    assert refusal(view, request(tokens=6400)) == Refused(Reason.TOO_LONG, {"context": 2})


def test_an_estimate_is_no_reason_to_refuse() -> None:
    view = fleet_of({"context_limit_tokens": 4096})
    assert winners(view, request(tokens=640_000, exact=False)) == {0}


def test_a_worker_that_has_not_said_its_limits_has_none() -> None:
    view = fleet_of({"context_limit_tokens": 0, "kv_capacity_tokens": 0})
    assert winners(view, request(tokens=640_000)) == {0}


def test_a_worker_with_room_for_the_whole_answer_is_preferred_and_not_required() -> None:
    view = fleet_of({"context_limit_tokens": 8192}, {"context_limit_tokens": 32_768})
    assert winners(view, request(tokens=6400, wanted_output_tokens=4000)) == {1}
    assert winners(view, request(tokens=6400, wanted_output_tokens=99_000)) == {0, 1}


# Limits.


@pytest.mark.parametrize("limits", [{"running": 2}, {"tokens": 12_800}, {"waiting": 3}, {"kv_used": 0.9}])
def test_a_worker_at_a_limit_gets_nothing_more_of_the_profile(limits: dict[str, float]) -> None:
    view = fleet_of({}, {})
    for number in range(2):
        view.place(0, [OTHER + number], True, 0.1, 6400, now=0.0)
    view.update_load(0, Load(1, waiting=3, kv_used=0.95), now=0.0)
    limited = request(profile=Profile(limits=msgspec.convert(limits, WorkerLimits)))
    assert winners(view, limited) == {1}
    for number in range(2):
        view.place(1, [OTHER + number], True, 0.1, 6400, now=0.0)
    view.update_load(1, Load(1, waiting=3, kv_used=0.95), now=0.0)
    assert refusal(view, limited) == Refused(Reason.FULL, {"limits": 2})
    assert winners(view, request())


# Pools, weights, batching.


def test_an_elastic_pool_is_left_when_that_is_worth_its_price() -> None:
    view = with_labels({"pool": "long"}, {})
    profile = Profile(prefer={"pool": ("long",)}, prefer_s=2.0)
    assert winners(view, request(profile=profile)) == {0}
    view.place(0, [OTHER], True, 1.0, 6400, now=0.0)
    assert winners(view, request(profile=profile)) == {0}
    view.place(0, [OTHER + 1], True, 3.0, 6400, now=0.0)
    assert winners(view, request(profile=profile)) == {1}
    assert route(view, request(profile=profile)).terms["pool"].tolist()[:2] == [0.0, 2.0]


def test_weights_multiply_terms_by_their_names() -> None:
    view = fleet_of({}, {})
    view.place(0, [OTHER], True, 1.0, 6400, now=0.0)
    plain = route(view, request())
    weighted = route(view, request(profile=Profile(weights={"wait": 3.0, "harm": 0.0})))
    assert weighted.terms["wait"][0] == pytest.approx(3 * plain.terms["wait"][0])
    assert not weighted.terms["harm"].any()
    assert (weighted.terms["work"] == plain.terms["work"]).all()


def test_where_idle_workers_have_a_price_traffic_keeps_together() -> None:
    view = fleet_of({}, {}, {})
    view.place(1, [OTHER], True, 0.001, 100, now=0.0)
    assert winners(view, request(tokens=640)) <= {0, 2}
    assert winners(view, request(tokens=640, profile=Profile(idle_s=5.0))) == {1}


def test_every_term_of_a_policy_can_be_weighted() -> None:
    expected = {"wait", "work", "cache", "harm", "decode", "adapter", "pool", "idle"}
    assert term_names(DELAY) == expected
    assert all(term_names(policy) for policy in POLICIES.values())


# Adapters.


def test_a_loaded_adapter_attracts_until_loading_it_elsewhere_is_cheaper() -> None:
    view = fleet_of({"adapters": ("sql",)}, {"adapters": ("sql",)})
    wanted = request(model="sql", adapter="sql")
    assert winners(view, wanted) == {0, 1}
    view.use_adapter(1, "sql")
    assert winners(view, wanted) == {1}
    view.place(1, [OTHER], True, 5.0, 6400, now=0.0)
    assert winners(view, wanted) == {0}


def test_a_worker_that_says_how_many_adapters_it_holds_is_believed() -> None:
    view = fleet_of({"adapters": ("a", "b"), "adapter_slots": 1})
    view.use_adapter(0, "a")
    view.use_adapter(0, "b")
    assert not view.with_adapter("a")[0]
    assert view.with_adapter("b")[0]
    view.retire(0)
    assert not view.with_adapter("b").any()


def test_an_adapter_that_an_agent_reports_is_loaded() -> None:
    view = fleet_of({"adapters": ("a",)}, {"adapters": ("a",), "resident_adapters": ("a",)})
    assert winners(view, request(model="a", adapter="a")) == {1}


# Failure domains.


def test_fallbacks_stand_in_other_failure_domains_first() -> None:
    view = with_labels({"rack": "a"}, {"rack": "a"}, {"rack": "b"}, {"rack": "c"}, failure_domain="rack")
    for slot, owed_s in enumerate((0.0, 0.1, 1.0, 2.0)):
        view.place(slot, [OTHER], True, owed_s, 640, now=0.0)
    assert route(view, request()).slots == (0, 2, 3)


def test_where_there_are_too_few_domains_the_rest_comes_by_cost() -> None:
    view = with_labels({"rack": "a"}, {"rack": "a"}, {"rack": "b"}, failure_domain="rack")
    for slot, owed_s in enumerate((0.0, 0.1, 1.0)):
        view.place(slot, [OTHER], True, owed_s, 640, now=0.0)
    assert route(view, request()).slots == (0, 2, 1)


def test_without_domains_only_cost_counts() -> None:
    view = with_labels({"rack": "a"}, {"rack": "a"}, {"rack": "b"})
    for slot, owed_s in enumerate((0.0, 0.1, 1.0)):
        view.place(slot, [OTHER], True, owed_s, 640, now=0.0)
    assert route(view, request()).slots == (0, 1, 2)


# Breakers.


def test_a_worker_whose_breaker_is_open_is_left_out_unless_it_is_the_only_one() -> None:
    view = View(breakers=Breakers(CAPACITY, failures=2))
    for number in range(2):
        view.admit(Worker(f"w{number}", endpoint=endpoint(number)), now=0.0)
    for _ in range(2):
        view.breakers.failed(0, 0.0)
    assert winners(view, request()) == {1}
    assert winners(view, request(subset=frozenset({endpoint(0)}))) == {0}
    assert Counter(name for name, _ in exclusions(request(), view)) == {"breaker": 1}


def test_a_decision_can_say_who_was_ruled_out_by_what() -> None:
    view = fleet_of(
        {"models": ("gpt",)}, {"state": "draining"}, {"labels": {"gpu": "l4"}}, {"labels": {"gpu": "h100"}}, {}
    )
    wanted = request(require={"gpu": ("h100",)})
    found = {name: out.nonzero()[0].tolist() for name, out in exclusions(wanted, view)}
    assert found == {"model": [0], "requirements": [1, 2, 4]}
    assert isinstance(decide(wanted, view, DELAY, MODEL, 0.0, Random(0)), Routed)
