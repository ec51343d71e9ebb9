"""The baselines do what their sources say; others come from installed packages."""

import sys
from collections import Counter
from importlib.metadata import EntryPoint
from random import Random
from types import ModuleType

import pytest

from picker.fleet.view import View
from picker.scheduling import policies
from picker.scheduling.decide import decide
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES, UnknownPolicy, find, names
from picker.scheduling.request import SchedulingRequest
from tests.unit.fleets import Load, fleet

MODEL = WorkerModel()
CHAIN = list(range(1, 101))
PROMPT = 6400


def request(sequence: int = 0, chain: list[int] = CHAIN, session: str = "") -> SchedulingRequest:
    return SchedulingRequest(
        sequence, "llama", prompt_tokens=PROMPT, expected_output_tokens=200, chain=chain, session=session
    )


def choice(view: View, policy: str, wanted: SchedulingRequest | None = None, seed: int = 0) -> int:
    decision = decide(wanted or request(), view, find(policy), MODEL, 1.0, Random(seed))
    assert isinstance(decision, Routed)
    return decision.slots[0]


def choices(view: View, policy: str, count: int = 200) -> Counter[int]:
    return Counter(choice(view, policy, request(sequence), sequence) for sequence in range(count))


def load(view: View, slot: int, requests: int, tokens: int = 100, work_s: float = 0.01) -> None:
    for _ in range(requests):
        view.inflight.book(slot, work_s, tokens, None, now=1.0)


def hold(view: View, slot: int, blocks: int) -> None:
    view.index.store(slot, CHAIN[:blocks])


def test_least_tokens_counts_tokens_and_not_requests() -> None:
    view = fleet(2)
    load(view, 0, requests=3, tokens=10)
    load(view, 1, requests=1, tokens=1000)
    assert choice(view, "least-tokens") == 0
    assert choice(view, "least-request") == 1


def test_power_of_two_avoids_the_busiest_and_spreads_the_rest() -> None:
    view = fleet(8)
    load(view, 3, requests=5)
    seen = choices(view, "power-of-two", 700)
    assert seen[3] == 0
    assert len(seen) == 7
    # Each idle worker but for the pairs that it loses to nobody: about 100 each.
    assert all(60 < count < 140 for count in seen.values())


def test_a_session_stays_whatever_the_load_and_others_go_elsewhere() -> None:
    view = fleet(8)
    home = choice(view, "session-hash", request(session="a"))
    load(view, home, requests=100)
    assert choice(view, "session-hash", request(7, session="a")) == home
    assert len({choice(view, "session-hash", request(session=str(number))) for number in range(100)}) == 8


def test_without_a_session_prompts_that_begin_alike_stay_together() -> None:
    view = fleet(8)
    assert len({choice(view, "session-hash", request(chain=[1, 2, other])) for other in range(20)}) == 1
    assert len({choice(view, "session-hash", request(chain=[1, other, 3])) for other in range(100)}) == 8


def test_the_other_sessions_stay_when_a_worker_goes() -> None:
    view = fleet(8)
    before = {number: choice(view, "session-hash", request(session=str(number))) for number in range(100)}
    view.retire(5)
    for number, slot in before.items():
        assert (choice(view, "session-hash", request(session=str(number))) == slot) == (slot != 5)


def test_bounded_load_passes_over_the_full_worker() -> None:
    view = fleet(4)
    home = choice(view, "bounded-load-hash", request(session="a"))
    assert home == choice(view, "session-hash", request(session="a"))
    load(view, home, requests=8)
    assert choice(view, "bounded-load-hash", request(session="a")) != home


def test_llm_d_weighs_published_queue_cache_use_and_prefix() -> None:
    view = fleet(3)
    hold(view, 1, 100)
    assert choice(view, "llm-d") == 1
    view.update_load(1, Load(beat=1, waiting=9, kv_used=0.9), now=1.0)
    assert choice(view, "llm-d") != 1  # 2 + 1.8 against 3


def test_llm_d_tuned_sees_what_was_just_placed_and_the_default_does_not() -> None:
    view = fleet(2)
    hold(view, 1, 60)
    load(view, 1, requests=6, work_s=1.0)
    assert choice(view, "llm-d") == 1
    assert choice(view, "llm-d-tuned") == 0


def test_sglang_follows_the_best_match_unless_loads_differ_too_much() -> None:
    view = fleet(2)
    hold(view, 1, 40)
    load(view, 1, requests=60)
    assert choice(view, "sglang") == 1
    load(view, 1, requests=10)
    assert choice(view, "sglang") == 0


def test_sglang_gives_a_new_prompt_to_the_smallest_tree() -> None:
    view = fleet(3)
    for slot, tokens in ((0, 500), (1, 100), (2, 900)):
        view.reuse.placed(slot, tokens, 0, now=1.0)
    load(view, 1, requests=5)
    assert choice(view, "sglang") == 1


def test_dynamo_trades_new_blocks_for_active_ones_by_its_weight() -> None:
    view = fleet(2)
    hold(view, 1, 50)  # saves 3,200 tokens
    load(view, 1, requests=1, tokens=5000, work_s=0.0)
    assert choice(view, "dynamo") == 0
    assert choice(view, "dynamo-8") == 1


def test_mooncake_adds_the_queue_to_the_prompts_own_prefill() -> None:
    view = fleet(2)
    hold(view, 1, 100)
    saved = float(MODEL.prefill_s(PROMPT, view.hit_blocks([])[:1] * 0)[0])
    load(view, 1, requests=1, work_s=0.5 * saved)
    assert choice(view, "mooncake") == 1
    load(view, 1, requests=1, work_s=saved)
    assert choice(view, "mooncake") == 0


def test_preble_exploits_a_long_match_and_else_explores() -> None:
    view = fleet(3)
    hold(view, 1, 60)
    load(view, 1, requests=20)
    assert choice(view, "preble") == 1
    short = fleet(3)
    hold(short, 1, 40)
    load(short, 1, requests=20, work_s=1.0)
    assert choice(short, "preble") != 1


def test_lmetric_multiplies_new_tokens_by_requests() -> None:
    view = fleet(2)
    hold(view, 1, 50)  # half of the prompt is new there
    load(view, 1, requests=1, work_s=0.0)
    assert choices(view, "lmetric").keys() == {0, 1}
    load(view, 1, requests=1, work_s=0.0)
    assert choice(view, "lmetric") == 0


def test_aibrix_prefers_matches_among_workers_that_are_not_too_full() -> None:
    view = fleet(4)
    hold(view, 1, 100)
    hold(view, 2, 50)
    assert choice(view, "aibrix") == 1
    load(view, 1, requests=6)
    assert choice(view, "aibrix") == 2
    load(view, 1, requests=3)
    assert choice(view, "aibrix") != 1  # nine more than the least: load alone counts
    assert choices(view, "aibrix").keys() == {0, 2, 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_one_worker_is_always_chosen(policy: str) -> None:
    assert choice(fleet(1, capacity=1), policy) == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_prompt_of_which_nothing_is_known_goes_anywhere(policy: str) -> None:
    view = fleet(4)
    seen = {choice(view, policy, SchedulingRequest(number, "llama"), number) for number in range(100)}
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_says_what_it_is_in_one_sentence(policy: str) -> None:
    assert find(policy).summary.endswith((".", ":", "."))


def test_a_worker_with_many_requests_is_not_avoided_for_their_number_alone() -> None:
    """Short prompts would gather there, and long ones where few requests then decode slowly."""
    view = fleet(3)
    for slot, requests in enumerate((1, 20, 40)):
        load(view, slot, requests=requests)
    wanted = SchedulingRequest(0, "llama", prompt_tokens=80_000, expected_output_tokens=100)
    decision = decide(wanted, view, find("expected-delay"), MODEL, 1.0, Random(0))
    assert isinstance(decision, Routed)
    few, many, crowd = decision.terms["harm"][:3].tolist()
    assert few < many < crowd < 1.1 * many


# Policies from elsewhere.


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A package that offers `mine`, which takes the last slot, and `broken`, which is no policy."""
    module = ModuleType("somebodys_policy", "Mine: the last worker.")
    module.terms = lambda situation: {"rank": -situation.view.epochs.astype(float) + 10}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "somebodys_policy", module)
    entries = [
        EntryPoint("mine", "somebodys_policy", policies.GROUP),
        EntryPoint("broken", "sys", policies.GROUP),
        EntryPoint("missing", "no_such_package", policies.GROUP),
        EntryPoint("random", "somebodys_policy", policies.GROUP),
    ]
    monkeypatch.setattr(policies, "entry_points", lambda group: entries if group == policies.GROUP else [])
    return module


def test_an_installed_package_adds_a_policy(installed: ModuleType) -> None:
    assert find("mine").summary == "Mine: the last worker."
    assert "mine" in names()
    assert choice(fleet(3), "mine") in range(3)


def test_it_cannot_replace_one_of_ours(installed: ModuleType) -> None:
    assert find("random") is POLICIES["random"]


@pytest.mark.parametrize(
    ("name", "says"),
    [("broken", "no function terms"), ("missing", "cannot be imported"), ("nope", "there are: expected-delay")],
)
def test_what_is_no_policy_is_named(installed: ModuleType, name: str, says: str) -> None:
    with pytest.raises(UnknownPolicy, match=says):
        find(name)
