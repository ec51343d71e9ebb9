from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from picker.simulation.engine import DoesNotFit, Engine, StepResult
from picker.simulation.kv_cache import AllBlocksCleared, BlockRemoved, BlockStored, CacheEvent
from picker.simulation.profiles import PROFILES, Profile
from picker.simulation.sequence import Request

BLOCK = 4
PROFILE = Profile(a=1.0, b=0.1, q=0.0, d=0.01, e=0.0, kv_tokens=0, max_batch_tokens=64, max_seqs=4)


def an_engine(num_blocks: int = 32, profile: Profile = PROFILE) -> Engine:
    return Engine(profile, BLOCK, num_blocks)


def finish(engine: Engine) -> list[StepResult]:
    results = []
    while engine.has_work:
        results.append(engine.step())
    return results


def run(engine: Engine, prompt: list[int], max_tokens: int = 1, **fields: str) -> list[StepResult]:
    engine.submit(Request("r", prompt, max_tokens, **fields))
    return finish(engine)


def events(results: list[StepResult]) -> list[CacheEvent]:
    return [event for result in results for event in result.events]


def cached_tokens(results: list[StepResult]) -> int:
    return sum(admitted.cached_tokens for result in results for admitted in result.admitted)


def numbers(count: int, start: int = 0) -> list[int]:
    return list(range(start, start + count))


class TestSteps:
    """What a step does and how long it takes."""

    def test_a_step_costs_what_its_content_costs(self) -> None:
        profile = Profile(a=1, b=10, q=100, d=1000, e=10_000, kv_tokens=0)
        assert (
            profile.step_seconds(prefill_tokens=2, attention=3, decodes=4, decode_context=5) == 1 + 20 + 300 + 4e3 + 5e4
        )

    def test_a_prompt_longer_than_the_budget_takes_several_steps_before_its_first_token(self) -> None:
        results = run(an_engine(64), numbers(150))
        assert [len(result.produced) for result in results] == [0, 0, 1]
        assert [round(result.seconds, 6) for result in results] == [7.4, 7.4, 3.2]

    def test_attention_counts_the_context_before_a_chunk(self) -> None:
        profile = Profile(a=0, b=0, q=1, d=0, e=0, kv_tokens=0, max_batch_tokens=8)
        results = run(an_engine(profile=profile), numbers(12))
        assert [result.seconds for result in results] == [8 * 4, 4 * (8 + 2)]

    def test_cached_tokens_cost_nothing(self) -> None:
        engine = an_engine()
        cold, warm = run(engine, numbers(21)), run(engine, numbers(21))
        assert (cold[0].seconds, warm[0].seconds) == (pytest.approx(3.1), pytest.approx(1.1))

    def test_a_decode_goes_on_beside_a_prefill_and_is_scheduled_first(self) -> None:
        engine = an_engine(64)
        engine.submit(Request("decode", numbers(4), 3))
        engine.step()
        engine.submit(Request("prefill", numbers(100, 100), 1))
        result = engine.step()
        assert [each.request_id for each in result.produced] == ["decode"]
        assert result.seconds == pytest.approx(1.0 + 63 * 0.1 + 0.01)

    def test_no_more_sequences_run_than_allowed_and_the_rest_wait_in_order(self) -> None:
        engine = an_engine()
        for name in "abcdef":
            engine.submit(Request(name, numbers(3), 2))
        first = engine.step()
        assert [each.request_id for each in first.admitted] == ["a", "b", "c", "d"]
        assert (engine.gauges().running, engine.gauges().waiting) == (4, 2)
        engine.step()
        assert [each.request_id for each in engine.step().admitted] == ["e", "f"]

    def test_the_same_prompt_gets_the_same_answer_of_exactly_max_tokens(self) -> None:
        answers = [[t.token for result in run(an_engine(), numbers(9), 7) for t in result.produced] for _ in range(2)]
        assert answers[0] == answers[1]
        assert len(answers[0]) == 7

    def test_only_the_last_token_of_an_answer_is_marked_as_last(self) -> None:
        produced = [token for result in run(an_engine(), numbers(9), 3) for token in result.produced]
        assert [(token.position, token.finished) for token in produced] == [(0, False), (1, False), (2, True)]

    def test_prompts_count_as_prefilled_when_their_last_token_is_computed(self) -> None:
        assert [result.prefilled_tokens for result in run(an_engine(), numbers(100), 2)] == [0, 100, 0]

    def test_an_idle_engine_takes_no_time(self) -> None:
        assert an_engine().step() == StepResult()

    @pytest.mark.parametrize("prompt, max_tokens", [([], 1), ([1], 0), (numbers(128), 1)])
    def test_what_can_never_be_finished_is_refused(self, prompt: list[int], max_tokens: int) -> None:
        with pytest.raises(DoesNotFit):
            an_engine(32).submit(Request("r", prompt, max_tokens))

    def test_every_named_profile_prefills_faster_than_it_decodes(self) -> None:
        for profile in PROFILES.values():
            prefill = profile.step_seconds(prefill_tokens=100, attention=5000.0, decodes=0, decode_context=0)
            decode = profile.step_seconds(prefill_tokens=0, attention=0.0, decodes=1, decode_context=100)
            assert prefill < 100 * decode


class TestCache:
    """What is cached, found again, evicted and announced."""

    def test_only_whole_blocks_are_announced_with_their_tokens(self) -> None:
        [stored] = events(run(an_engine(), numbers(11)))
        assert isinstance(stored, BlockStored)
        assert (len(stored.block_hashes), stored.token_ids) == (2, tuple(range(8)))
        assert (stored.parent_block_hash, stored.block_size, stored.extra_keys) == (None, BLOCK, (None, None))

    def test_a_repeat_announces_nothing(self) -> None:
        engine = an_engine()
        run(engine, numbers(11))
        again = run(engine, numbers(11))
        assert (events(again), cached_tokens(again)) == ([], 8)

    def test_an_extension_announces_the_new_blocks_under_the_last_shared_one(self) -> None:
        engine = an_engine()
        [first] = events(run(engine, numbers(8)))
        [second] = events(run(engine, numbers(17)))
        assert isinstance(first, BlockStored) and isinstance(second, BlockStored)
        assert second.parent_block_hash == first.block_hashes[-1]
        assert second.token_ids == tuple(range(8, 16))

    def test_a_fully_cached_prompt_recomputes_its_last_block_and_stores_it_twice(self) -> None:
        engine = an_engine()
        [first] = events(run(engine, numbers(12)))
        repeat = run(engine, numbers(12))
        [again] = events(repeat)
        assert isinstance(first, BlockStored) and isinstance(again, BlockStored)
        assert cached_tokens(repeat) == 8
        assert again.block_hashes == first.block_hashes[-1:]
        assert engine.cached_blocks()[again.block_hashes[0]] == 2

    def test_a_hash_stored_twice_and_removed_once_can_still_be_hit(self) -> None:
        engine = an_engine(num_blocks=8)
        [stored] = events(run(engine, numbers(12)))
        run(engine, numbers(12))
        removed = Counter(events(run(engine, numbers(17, 100))))
        assert isinstance(stored, BlockStored)
        assert removed[BlockRemoved(stored.block_hashes[-1:])] == 1
        assert cached_tokens(run(engine, numbers(13))) == 12

    def test_the_tail_of_a_prompt_is_evicted_first(self) -> None:
        engine = an_engine(num_blocks=8)
        [stored] = events(run(engine, numbers(24)))
        evicted = [event for event in events(run(engine, numbers(16, 100))) if isinstance(event, BlockRemoved)]
        assert isinstance(stored, BlockStored)
        assert [event.block_hashes[0] for event in evicted] == list(reversed(stored.block_hashes[-2:]))
        assert cached_tokens(run(engine, numbers(24))) == 16

    def test_the_least_recently_used_prompt_is_evicted_first(self) -> None:
        engine = an_engine(num_blocks=8)
        for start in (0, 100, 0, 200):
            run(engine, numbers(13, start))
        assert cached_tokens(run(engine, numbers(13))) == 12
        assert cached_tokens(run(engine, numbers(13, 100))) == 4

    def test_an_answer_can_be_reused_by_the_next_turn(self) -> None:
        engine = an_engine()
        results = run(engine, numbers(6), 10)
        answer = [token.token for result in results for token in result.produced]
        assert [len(event.block_hashes) for event in events(results) if isinstance(event, BlockStored)] == [1, 1, 1]
        # 6 + 10 tokens; the last one was produced and never computed.
        assert cached_tokens(run(engine, [*numbers(6), *answer, 1, 2, 3])) == 12

    def test_a_chunked_prefill_is_announced_chunk_by_chunk(self) -> None:
        announced = [len(result.events) for result in run(an_engine(64), numbers(150))]
        assert announced == [1, 1, 1]

    def test_identical_prompts_of_one_step_share_their_blocks(self) -> None:
        engine = an_engine()
        for name in "abc":
            engine.submit(Request(name, numbers(11), 1))
        result = engine.step()
        assert len(result.events) == 1
        assert [each.cached_tokens for each in result.admitted] == [0, 8, 8]

    def test_salts_and_adapters_keep_prompts_apart_and_are_announced(self) -> None:
        engine = an_engine()
        run(engine, numbers(9))
        salted, adapted = run(engine, numbers(9), salt="s"), run(engine, numbers(9), adapter="a", salt="s")
        assert (cached_tokens(salted), cached_tokens(adapted)) == (0, 0)
        stored = [*events(salted), *events(adapted)]
        assert all(isinstance(event, BlockStored) for event in stored)
        assert [event.extra_keys for event in stored if isinstance(event, BlockStored)] == [
            (("s",), None),
            (("a", "s"), ("a",)),
        ]

    def test_a_reset_is_announced_by_the_next_step_and_before_what_it_stores(self) -> None:
        engine = an_engine()
        run(engine, numbers(9))
        assert engine.reset_cache()
        results = run(engine, numbers(9))
        assert cached_tokens(results) == 0
        assert [type(event) for event in events(results)] == [AllBlocksCleared, BlockStored]

    def test_a_reset_does_nothing_while_requests_run(self) -> None:
        engine = an_engine()
        engine.submit(Request("r", numbers(9), 5))
        engine.step()
        assert not engine.reset_cache()
        assert engine.cached_blocks()

    def test_an_aborted_request_leaves_its_blocks_cached_and_unused(self) -> None:
        engine = an_engine()
        engine.submit(Request("r", numbers(9), 5))
        engine.step()
        engine.abort("r")
        assert (engine.has_work, engine.gauges().kv_used) == (False, 0.0)
        assert cached_tokens(run(engine, numbers(9))) == 8


class TestPreemption:
    """Too many sequences for the blocks."""

    def test_the_youngest_gives_way_and_all_answers_are_complete_and_unchanged(self) -> None:
        engine = an_engine(num_blocks=8)
        engine.submit(Request("old", numbers(9), 16))
        engine.submit(Request("young", numbers(9, 100), 16))
        results = finish(engine)
        answers = {
            name: [t.token for r in results for t in r.produced if t.request_id == name] for name in ("old", "young")
        }
        assert sum(result.preempted for result in results) > 0
        assert [t.request_id for r in results for t in r.produced if t.finished] == ["old", "young"]
        for name, start in (("old", 0), ("young", 100)):
            assert answers[name] == [t.token for r in run(an_engine(), numbers(9, start), 16) for t in r.produced]

    def test_a_preempted_request_is_not_admitted_anew_in_the_statistics(self) -> None:
        engine = an_engine(num_blocks=8)
        engine.submit(Request("old", numbers(9), 16))
        engine.submit(Request("young", numbers(9, 100), 16))
        assert Counter(each.request_id for result in finish(engine) for each in result.admitted) == {
            "old": 1,
            "young": 1,
        }


class EngineMachine(RuleBasedStateMachine):
    """Any sequence of submissions, steps, aborts and resets; beside it, what a listener makes of the events."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = an_engine(num_blocks=10, profile=Profile(1, 0, 0, 0, 0, 0, max_batch_tokens=12, max_seqs=3))
        self.open: set[str] = set()
        self.submitted = 0
        self.reset_pending = False
        self.heard: Counter[int] = Counter()
        self.parents: dict[int, int | None] = {}

    @rule(
        branch=st.integers(0, 2),
        shared=st.integers(0, 16),
        own=st.integers(1, 12),
        max_tokens=st.integers(1, 12),
        salt=st.sampled_from([None, "s"]),
    )
    def submit(self, branch: int, shared: int, own: int, max_tokens: int, salt: str | None) -> None:
        name = str(self.submitted)
        self.submitted += 1
        prompt = numbers(shared) + numbers(own, 100 * (branch + 1))
        self.engine.submit(Request(name, prompt, max_tokens, salt=salt))
        self.open.add(name)

    @precondition(lambda self: self.engine.has_work)
    @rule(count=st.integers(1, 8))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.hear(self.engine.step())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.engine.abort(name)
        self.open.discard(name)

    @rule()
    def reset(self) -> None:
        self.reset_pending |= self.engine.reset_cache()

    def hear(self, result: StepResult) -> None:
        for event in result.events:
            self.apply(event)
        self.open -= {token.request_id for token in result.produced if token.finished}
        self.reset_pending &= not result.events

    def apply(self, event: CacheEvent) -> None:
        match event:
            case BlockStored(hashes, parent):
                for value in hashes:
                    self.heard[value] += 1
                    self.parents[value] = parent
                    parent = value
            case BlockRemoved(hashes):
                self.heard.subtract(hashes)
                assert min(self.heard.values()) >= 0
            case AllBlocksCleared():
                self.heard.clear()

    @invariant()
    def a_listener_knows_exactly_what_is_cached(self) -> None:
        if not self.reset_pending:
            assert +self.heard == self.engine.cached_blocks()

    @invariant()
    def every_cached_block_has_its_parent(self) -> None:
        cached = self.engine.cached_blocks()
        assert all(self.parents[value] is None or self.parents[value] in cached for value in cached)

    @invariant()
    def blocks_are_used_only_while_something_runs(self) -> None:
        gauges = self.engine.gauges()
        assert 0 <= gauges.kv_used <= 1
        assert (gauges.kv_used > 0) == (gauges.running > 0)
        assert gauges.running + gauges.waiting == len(self.open)

    def teardown(self) -> None:
        for _ in range(2000):
            if not self.engine.has_work:
                break
            self.hear(self.engine.step())
        assert not self.open
        assert self.engine.gauges().kv_used == 0
        # Nobody uses a block, so each one must be free to be taken: one request needs them all.
        self.engine.submit(Request("all", numbers(39, 1000), 1))
        assert [each.request_id for result in finish(self.engine) for each in result.admitted] == ["all"]


EngineMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestAnySequence = EngineMachine.TestCase
