"""The discrete engine does what the simulated worker's engine does, step for step."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picker.simulation.discrete.engine import IDLE, DiscreteEngine, Job
from picker.simulation.engine import DoesNotFit, Engine
from picker.simulation.profiles import Profile
from picker.simulation.sequence import Request

BLOCK = 4


@dataclass(frozen=True)
class Given:
    """A request at a time, whose prompt begins with so many tokens of a family's."""

    at: float
    family: int
    shared: int
    own: int
    output: int


@dataclass(frozen=True)
class Seen:
    """What came of it."""

    cached: int
    first_token_at: float
    ended_at: float


def tokens_of(number: int, request: Given) -> list[int]:
    return [request.family * 1000 + i for i in range(request.shared)] + [
        100_000 + number * 1000 + i for i in range(request.own)
    ]


def chain_of(number: int, request: Given) -> list[int]:
    # Answers follow prompts that nobody else has, so any tokens will do that nobody else has either.
    tokens = tokens_of(number, request) + [-number * 1000 - i for i in range(request.output)]
    return [hash(tuple(tokens[: end * BLOCK])) for end in range(1, len(tokens) // BLOCK + 1)]


def by_reference(profile: Profile, requests: Sequence[Given]) -> list[Seen]:
    engine = Engine(profile, BLOCK, profile.kv_tokens // BLOCK)
    cached, first, ended = {}, {}, {}
    now, left = 0.0, list(enumerate(requests))
    while left or engine.has_work:
        if not engine.has_work:
            now = max(now, left[0][1].at)
        while left and left[0][1].at <= now:
            number, request = left.pop(0)
            engine.submit(Request(str(number), tokens_of(number, request), request.output))
        result = engine.step()
        now += result.seconds
        for admitted in result.admitted:
            cached[int(admitted.request_id)] = admitted.cached_tokens
        for token in result.produced:
            if token.position == 0:
                first[int(token.request_id)] = now
            if token.finished:
                ended[int(token.request_id)] = now
    return [Seen(cached[i], first[i], ended[i]) for i in range(len(requests))]


def by_events(profile: Profile, requests: Sequence[Given]) -> list[Seen]:
    engine = DiscreteEngine(profile, BLOCK)
    jobs = [Job(r.shared + r.own, r.output, chain_of(i, r)) for i, r in enumerate(requests)]
    first, ended = {}, {}
    ends, left = IDLE, list(zip(requests, jobs, strict=True))
    while left or ends < IDLE:
        if left and left[0][0].at < ends:
            request, job = left.pop(0)
            engine.submit(job)
            ends = engine.begin(request.at) if engine.is_idle else engine.cut(request.at)
            continue
        progress, now = engine.finish(), ends
        for job in progress.first_tokens:
            first[job] = now
        for job in progress.ended:
            ended[job] = now
        while left and left[0][0].at <= now:
            engine.submit(left.pop(0)[1])
        ends = engine.begin(now)
    return [Seen(job.cached_tokens or 0, first[job], ended[job]) for job in jobs]


requests_in_order = st.lists(
    st.builds(
        Given,
        at=st.integers(0, 400).map(lambda number: number / 7.000123),
        family=st.integers(0, 2),
        shared=st.integers(0, 40),
        own=st.integers(1, 30),
        output=st.integers(1, 40),
    ),
    min_size=1,
    max_size=14,
    unique_by=lambda request: request.at,
).map(lambda requests: sorted(requests, key=lambda request: request.at))
profiles = st.builds(
    Profile,
    a=st.just(0.5),
    b=st.just(0.013),
    q=st.just(0.001),
    d=st.just(0.011),
    e=st.sampled_from([0.0, 0.0007]),
    kv_tokens=st.sampled_from([160, 240, 2000]),
    max_batch_tokens=st.sampled_from([16, 64]),
    max_seqs=st.sampled_from([3, 12]),
)


@settings(max_examples=400, deadline=None)
@given(profile=profiles, requests=requests_in_order)
def test_both_engines_give_the_same_times_and_hits(profile: Profile, requests: list[Given]) -> None:
    for ours, reference in zip(by_events(profile, requests), by_reference(profile, requests), strict=True):
        assert ours.cached == reference.cached
        assert ours.first_token_at == pytest.approx(reference.first_token_at, rel=1e-9)
        assert ours.ended_at == pytest.approx(reference.ended_at, rel=1e-9)


PLAIN = Profile(a=1.0, b=0.1, q=0.0, d=0.01, e=0.001, kv_tokens=1000, max_batch_tokens=64, max_seqs=4)


def test_decoding_alone_is_one_leap() -> None:
    engine = DiscreteEngine(PLAIN, BLOCK)
    engine.submit(Job(10, 100, ()))
    first = engine.begin(0.0)
    engine.finish()
    assert engine.begin(first) == pytest.approx(first + 99 * 1.01 + 0.001 * sum(range(11, 110)))
    assert len(engine.finish().ended) == 1
    assert engine.begin(0.0) == IDLE


def test_a_request_ends_a_leap_with_the_step_in_progress() -> None:
    engine = DiscreteEngine(PLAIN, BLOCK)
    engine.submit(Job(10, 100, ()))
    first = engine.begin(0.0)
    engine.finish()
    engine.begin(first)
    engine.submit(Job(10, 1, ()))
    assert engine.cut(first + 1.5) == pytest.approx(first + 2 * 1.01 + 0.011 + 0.012)


def test_a_slow_worker_takes_longer_for_the_same() -> None:
    fast, slow = DiscreteEngine(PLAIN, BLOCK), DiscreteEngine(PLAIN, BLOCK)
    slow.slowdown = 3.0
    for engine in (fast, slow):
        engine.submit(Job(10, 5, ()))
    assert slow.begin(0.0) == pytest.approx(3 * fast.begin(0.0))


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(DoesNotFit, match="1001 tokens, but the KV cache of this profile holds 1000"):
        DiscreteEngine(PLAIN, BLOCK).submit(Job(1000, 1, ()))
