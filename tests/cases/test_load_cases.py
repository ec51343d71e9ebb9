"""Field cases of load: who looks idle and is not, who is counted twice, whose counters leak."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from picker.agent.engines.vllm import read_metrics
from picker.agent.metrics import Which
from picker.config import Config
from picker.extproc.actions import Action, FirstByte, Pick, Release
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import BodyMode, Closed, Event, Picked, RequestBody, RequestHeaders, ResponseHeaders
from picker.fleet.inflight import Booking
from picker.fleet.view import View
from picker.picking import Picker
from picker.placing import Placement, Placer
from picker.prompts.reader import PromptReader
from picker.scheduling.decide import decide
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import POLICIES
from picker.scheduling.profile import Profile, WorkerLimits
from picker.telemetry.metrics import Metrics
from tests.unit.fleets import Load, Worker, endpoint, fleet, slot_at
from tests.unit.test_decide import DELAY, OTHER, request, route, send

A, B, C = 0, 1, 2


def placed(view: View, count: int, slot: int, now: float = 0.0, work_s: float = 0.1) -> list[Booking]:
    return [view.place(slot, [OTHER + number], True, work_s, 6400, now) for number in range(count)]


def requests(view: View) -> list[int]:
    return view.inflight.requests[: len(list(view.slots()))].tolist()


async def test_ld_01_a_burst_of_equal_prompts_spreads() -> None:
    view = fleet(8, publishes_kv=False)
    picker = Picker(Config(), view, PromptReader({}), Metrics(), lambda: False)
    body = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "The same words. " * 500}]}).encode()
    wanted = Pick({":method": "POST", ":path": "/v1/chat/completions"}, body)
    for slot in view.slots():  # all have served it before
        answer = await picker.pick(Pick(wanted.headers, body, subset=frozenset({view.facts(slot).endpoint})))
        assert isinstance(answer, Picked)
        picker.release(answer.placement)
    barrier = asyncio.Barrier(64)

    async def ask() -> str:
        await barrier.wait()
        answer = await picker.pick(wanted)
        assert isinstance(answer, Picked)
        return answer.endpoints[0]

    counts = Counter(await asyncio.gather(*(ask() for _ in range(64))))
    picker.close()
    assert max(counts.values()) <= 2 * 64 / 8


def test_ld_04_counters_survive_ticks_of_health_and_load() -> None:
    view, wanted = fleet(3), request()
    view.index.store(A, wanted.chain)
    placed(view, 30, A, work_s=0.5)
    for beat in range(5):
        view.update_facts(A, view.facts(A))
        view.update_load(A, Load(beat, running=30), now=beat * 0.01)
        view.sweep(beat * 0.01)
    assert requests(view) == [30, 0, 0]
    assert {send(view, wanted, now=0.1, seed=seed) for seed in range(4)} <= {B, C}


def test_ld_06_only_workers_that_may_serve_bear_on_the_others() -> None:
    def busy(*states: str) -> View:
        view = View()
        for number, state in enumerate(states):
            slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), state=state), now=0.0)
            view.index.trust(slot, True)
        for slot in (A, B):
            placed(view, 5, slot)
        view.index.store(B, request().chain)
        return view

    with_third, without = busy("ready", "ready", "unhealthy"), busy("ready", "ready")
    for policy in POLICIES:
        both = [route(view, request(), policy, now=0.1) for view in (with_third, without)]
        assert both[0].endpoints == both[1].endpoints, policy
        for name, values in both[0].terms.items():
            assert values[:2].tolist() == both[1].terms[name][:2].tolist(), (policy, name)
    assert route(with_third, request(), now=0.1).slots[0] == B


def test_ld_08_a_worker_that_comes_back_starts_at_zero_and_never_goes_below() -> None:
    view = fleet(2)
    old = placed(view, 10, A)
    view.retire(A)
    again = view.admit(Worker("w0", epoch=2, endpoint=endpoint(0)), now=1.0)
    new = placed(view, 5, again)
    for booking in old:
        view.inflight.release(booking, 2.0)
        assert (view.inflight.requests >= 0).all()
    assert view.inflight.requests[again] == 5
    for booking in new:
        view.inflight.release(booking, 3.0)
        view.inflight.release(booking, 3.0)
    assert not view.inflight.requests.any()


class Exchange:
    """One stream before a real placer."""

    def __init__(self, placer: Placer, mode: BodyMode):
        self._placer = placer
        self._conversation = Conversation(Settings(), ByteBudget(1 << 30))
        self._mode = mode

    def tell(self, *events: Event) -> None:
        waiting = list(events)
        while waiting:
            for action in self._conversation.receive(waiting.pop(0), 0.0):
                if answer := self._perform(action):
                    waiting.insert(0, answer)

    def _perform(self, action: Action) -> Event | None:
        match action:
            case Pick():
                placement = self._placer.place(request(), 0.0)
                assert isinstance(placement, Placement)
                return Picked(placement.decision.endpoints, placement)
            case FirstByte(placement=placement, status=status, served=served):
                self._placer.answered(placement, status, served, 0.0)
            case Release(placement=placement):
                self._placer.release(placement, 0.0)
        return None


def headers(mode: BodyMode) -> RequestHeaders:
    return RequestHeaders({":method": "POST", ":path": "/v1/completions"}, False, mode, False, BodyMode.NONE, None)


STAGES: dict[str, Callable[[BodyMode], list[Event]]] = {
    "after headers": lambda mode: [headers(mode)],
    "mid-body": lambda mode: [headers(mode), RequestBody(b'{"mo', False)],
    "after the pick": lambda mode: [headers(mode), RequestBody(b"{}", True)],
    "mid-stream": lambda mode: [headers(mode), RequestBody(b"{}", True), ResponseHeaders(200, "")],
    "after an error": lambda mode: [headers(mode), RequestBody(b"{}", True), ResponseHeaders(503, "")],
}


@pytest.mark.parametrize("mode", [BodyMode.BUFFERED, BodyMode.FULL_DUPLEX])
@pytest.mark.parametrize("stage", STAGES)
def test_ld_09_whenever_a_client_leaves_the_books_are_even(stage: str, mode: BodyMode) -> None:
    view = fleet(4)
    placer = Placer(Config(), view)
    for _ in range(1000):
        exchange = Exchange(placer, mode)
        exchange.tell(*STAGES[stage](mode))
        exchange.tell(Closed())
        exchange.tell(Closed())
    books = view.inflight
    assert not books.requests.any()
    assert not books.context_tokens.any()
    assert not books.prefill_s.any()
    assert not books.awaited


def test_ld_11_sizes_are_the_workers_own_and_a_pool_at_five_percent_is_not_full() -> None:
    text = """
vllm:cache_config_info{block_size="1056",num_gpu_blocks="400",engine="0"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.05
vllm:num_requests_running{engine="0",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} 0
"""
    metrics = read_metrics(text.encode(), Which())
    capacity, used = metrics.kv_capacity_tokens, metrics.kv_used or 0.0
    assert (capacity, used) == (1056 * 400, 0.05)
    view = View()
    facts = Worker("w0", adapters=("lora",), kv_capacity_tokens=capacity, adapter_slots=2)
    view.admit(facts, now=0.0)
    view.update_load(A, Load(1, running=4, kv_used=used), now=0.0)
    placed(view, 4, A)
    limited = Profile(limits=WorkerLimits(kv_used=0.9, tokens=capacity))
    wanted = request(model="lora", adapter="lora", profile=limited)
    assert route(view, wanted).slots == (A,)
    assert view.inflight.context_tokens[A] == 4 * 6400


def test_ld_12_what_a_cache_holds_is_no_load() -> None:
    view, wanted = fleet(2), request()
    view.index.store(A, wanted.chain[:60])
    view.update_load(A, Load(1, running=0, kv_used=0.95), now=0.0)
    placed(view, 30, B)
    view.update_load(B, Load(1, running=30, kv_used=0.10), now=0.0)
    assert route(view, wanted).slots[0] == A


def test_ld_13_a_worker_that_fails_fast_does_not_look_idle_and_gets_few_tries() -> None:
    view = fleet(3)
    placer = Placer(Config(), view)
    open_, tries = list[tuple[float, Placement]](), list[float]()
    for step in range(6000):  # a minute, a hundred requests a second, each of half a second where it is served
        now = step * 0.01
        while open_ and open_[0][0] <= now:
            _, done = open_.pop(0)
            placer.answered(done, 200, "", now)
            placer.release(done, now)
        view.sweep(now)
        placement = placer.place(request(tokens=64, chain_id=step), now)
        assert isinstance(placement, Placement)
        if placement.decision.slots[0] == A:
            tries.append(now)
            placer.answered(placement, 500, "", now)
            placer.release(placement, now)
        else:
            open_.append((now + 0.5, placement))
    assert Config().breaker.failures <= len(tries) < 20, "of 6,000"
    assert tries[-1] > 10, "it is tried again"


def test_ld_13_one_that_has_recovered_is_used_again() -> None:
    view = fleet(2)
    for _ in range(Config().breaker.failures):
        view.breakers.failed(A, 0.0)
    assert {route(view, request(), now=1.0, seed=seed).slots[0] for seed in range(20)} == {B}
    later = Config().breaker.pause_s
    assert {route(view, request(), now=later, seed=seed).slots[0] for seed in range(20)} == {A, B}
    view.breakers.tried(A, later)
    assert {route(view, request(), now=later, seed=seed).slots[0] for seed in range(20)} == {B}
    view.breakers.answered(A, 200, later + 0.1)
    assert {route(view, request(), now=later + 0.1, seed=seed).slots[0] for seed in range(20)} == {A, B}


def test_ld_14_what_clients_do_wrong_opens_no_breaker() -> None:
    view = fleet(1)
    placer = Placer(Config(), view)
    for status in [400, 401, 404, 422, 408, 429] * 50:
        placement = placer.place(request(), 0.0)
        assert isinstance(placement, Placement)
        placer.answered(placement, status, "", 0.0)
        placer.release(placement, 0.0)
    assert view.breakers.open == 0
    assert route(view, request()).slots == (A,)


def test_ld_17_a_picker_that_shares_nothing_goes_by_what_workers_report() -> None:
    views = [fleet(8) for _ in range(3)]
    rng = Random(1)
    truth = Counter[int]()
    for number in range(200):
        view = views[0] if rng.random() < 0.9 else rng.choice(views[1:])
        truth[send(view, request(tokens=640, chain_id=number), now=number * 0.01, seed=number)] += 1
        if number % 10 == 9:  # every worker reports to all
            for each in views:
                for slot in range(8):
                    each.update_load(slot, Load(number, running=truth[slot]), now=number * 0.01)
    assert max(truth.values()) <= 1.5 * 200 / 8
    assert min(truth.values()) >= 0.5 * 200 / 8


RUNNING = {A: 40, B: 40, C: 5}
"""What workers report to a picker that has just started."""


def after_a_start(policy: str) -> Counter[int]:
    """Where the first hundred requests go."""
    view, went = fleet(3), Counter[int]()
    for slot, count in RUNNING.items():
        view.update_load(slot, Load(1, running=count), now=0.0)
    for number in range(100):
        view.sweep(number * 0.2)
        wanted = request(tokens=640, chain_id=number, exact=False)
        went[send(view, wanted, now=number * 0.2, seed=number, policy=policy)] += 1
    return went


def test_ld_18_a_picker_that_starts_among_busy_workers_fills_the_idle_one_first() -> None:
    went = after_a_start("least-request")
    totals = [went[slot] + RUNNING[slot] for slot in RUNNING]
    assert max(totals) - min(totals) <= 1


def test_ld_18_by_cost_too_the_busy_ones_get_less_though_decoding_beside_others_is_cheap() -> None:
    went = after_a_start("expected-delay")
    assert went[C] > 1.3 * max(went[A], went[B])


@pytest.mark.parametrize("policy", POLICIES)
def test_ld_20_odd_numbers_give_a_defined_pick(policy: str) -> None:
    alone = fleet(1)
    assert route(alone, request(), policy).slots == (A,)
    equal = fleet(4)
    for slot in range(4):
        placed(equal, 3, slot)
    assert len(route(equal, request(), policy, now=0.1).slots) == 3
    odd = View()
    for number in range(3):
        facts = Worker(f"w{number}", endpoint=endpoint(number), kv_capacity_tokens=0, context_limit_tokens=0)
        odd.admit(facts, now=0.0)
        odd.update_load(number, Load(1, waiting=2**53, waiting_tokens=2**62, kv_used=1e30), now=0.0)
    nothing = Profile(weights=dict.fromkeys(("wait", "work", "cache", "harm", "decode"), 0.0))
    for profile in (Profile(), nothing):
        decision = route(odd, request(profile=profile), policy)
        assert len(decision.slots) == 3
        assert all(math.isfinite(decision.cost(rank)) for rank in range(3))


def test_ld_20_workers_of_no_speed_and_of_no_time_are_still_ordered() -> None:
    view = fleet(3)
    instant = WorkerModel(prefill_s_per_token=0.0, prefill_s_per_token2=0.0, step_s=0.0)
    for model in (instant, WorkerModel(batch_tokens=1)):
        decision = decide(request(), view, DELAY, model, 1e9, Random(0))
        assert isinstance(decision, Routed)
        assert all(np.isfinite(values).all() for values in decision.terms.values())


def test_ld_21_an_adapter_that_is_loaded_and_idle_is_remembered() -> None:
    view = View()
    for number in range(3):
        view.admit(Worker(f"w{number}", endpoint=endpoint(number), adapters=("a", "b")), now=0.0)
    placer = Placer(Config(), view)
    first = placer.place(request(model="a", adapter="a", subset=frozenset({endpoint(1)})), 0.0)
    assert isinstance(first, Placement)
    placer.release(first, 1.0)
    holder = slot_at(view, endpoint(1))
    for seed in range(20):
        assert route(view, request(model="a", adapter="a", chain_id=seed), now=60.0, seed=seed).slots[0] == holder
    other = request(model="b", adapter="b", chain_id=99)
    assert len({route(view, other, now=60.0, seed=seed).slots[0] for seed in range(40)}) == 3
