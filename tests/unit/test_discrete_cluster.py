"""The simulated cluster: production pickers, late news, faults, and what the figures say."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from picker.simulation.discrete import traces
from picker.simulation.discrete.cluster import Cluster, Fault, Patience, _Run, simulate
from picker.simulation.discrete.outcome import FAILED
from picker.simulation.discrete.slo import BadSlo, Slo, parse
from picker.simulation.discrete.traces import BadTrace, Slice
from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.profiles import PROFILES
from picker.simulation.trace import CONVERSATIONS

SMALL = PROFILES["8b"]
CLUSTER = Cluster(SMALL, workers=4)
SLO = parse("ttft=2s+1.5x,tpot=50ms")


def asks(count: int, every_s: float = 0.1, families: int = 7, tokens: int = 5120, output: int = 50) -> list[Ask]:
    """Requests in families that share all but their last two blocks."""
    return [
        Ask(
            at=number * every_s,
            prompt_tokens=tokens,
            output_tokens=output,
            chain=(
                *(number % families * 1000 + block for block in range(tokens // 512 - 2)),
                -2 * number - 1,
                -2 * number - 2,
            ),
        )
        for number in range(count)
    ]


class TestRuns:
    """What comes out of a run."""

    def test_each_request_ends_once_and_has_sensible_times(self) -> None:
        outcome = simulate(CLUSTER, Replay(asks(200), 512), seed=1)
        assert len(outcome.requests) == 200
        for request in outcome.requests:
            assert SMALL.a < request.ttft_s < FAILED
            assert request.decode_s >= 49 * SMALL.a
            assert 0 <= request.cached_tokens < request.prompt_tokens

    def test_the_same_seed_gives_the_same_run_and_another_seed_another(self) -> None:
        source = Replay(asks(100), 512)
        one, same, other = (simulate(CLUSTER, source, seed) for seed in (1, 1, 2))
        assert one.requests == same.requests
        assert one.load == same.load
        assert one.requests != other.requests

    def test_a_request_alone_takes_what_the_profile_says(self) -> None:
        [request] = simulate(CLUSTER, Replay([Ask(0.0, 5000, 1)], 512), 1).requests
        assert request.ttft_s == pytest.approx(SMALL.a + 5000 * SMALL.b + SMALL.q * 5000**2 / 2)
        assert request.ttft_s == pytest.approx(request.cold_s)

    def test_affinity_finds_what_is_cached_and_round_robin_spreads(self) -> None:
        source = Replay(asks(200), 512)
        picked, spread = (
            simulate(replace(CLUSTER, policy=policy), source, 1) for policy in ("expected-delay", "round-robin")
        )
        assert picked.figures(SLO).hit_ratio > spread.figures(SLO).hit_ratio
        assert set(Counter(request.worker for request in spread.requests).values()) == {50}

    def test_a_prompt_that_never_fits_fails_and_the_rest_goes_on(self) -> None:
        outcome = simulate(CLUSTER, Replay([Ask(0.0, 10**6, 1), Ask(0.1, 100, 5)], 512), 1)
        assert [request.ttft_s == FAILED for request in outcome.requests] == [True, False]
        assert outcome.figures(SLO).failures == 1

    def test_a_run_is_given_up_when_too_many_have_missed(self) -> None:
        outcome = simulate(CLUSTER, Replay(asks(500, every_s=0.001), 512), 1, Patience(Slo(ttft_s=0.01), 0.1))
        assert not outcome.is_whole
        assert 50 <= len(outcome.requests) < 500

    def test_the_books_of_all_pickers_return_to_zero(self) -> None:
        run = _Run(replace(CLUSTER, pickers=3), Replay(asks(100), 512), 1, None, None)
        run.go()
        for gateway in run._gateways:
            assert not gateway.view.inflight.requests.any()
            assert not gateway.view.inflight.context_tokens.any()


class TestNews:
    """What pickers know, and when."""

    def test_a_burst_of_equal_prompts_stays_together_before_any_event_came(self) -> None:
        burst = [Ask(number * 0.2, 20_000, 5, tuple(range(39))) for number in range(8)]
        late = simulate(replace(CLUSTER, event_delay_s=60.0), Replay(burst, 512), 1)
        assert sum(request.cached_tokens > 0 for request in late.requests) >= 6

    def test_pickers_that_know_nothing_of_one_another_do_worse(self) -> None:
        source = Replay(asks(300, every_s=0.09, families=300, tokens=10_240), 512)
        cluster = replace(CLUSTER, policy="mooncake")
        one, sharing, alone = (
            simulate(replace(cluster, pickers=count, share_s=share_s), source, 1).figures(SLO).ttft_p90_s
            for count, share_s in ((1, None), (8, 0.02), (8, None))
        )
        assert one < alone
        assert sharing < alone


class TestFaults:
    """Workers that die or are slow."""

    def test_what_runs_on_a_dying_worker_fails_and_later_requests_avoid_it(self) -> None:
        death = Fault(worker=0, at=5.0, seconds=20.0)
        cluster = replace(CLUSTER, policy="round-robin", faults=(death,))
        outcome = simulate(cluster, Replay(asks(400, output=200), 512), 1)
        failed = [request for request in outcome.requests if request.ttft_s == FAILED]
        assert failed
        assert all(request.at < 5.0 for request in failed)
        while_dead = [r for r in outcome.requests if 5.0 < r.at < 24.0]
        assert 0 not in {request.worker for request in while_dead}
        assert 0 in {request.worker for request in outcome.requests if request.at > 26.0}

    def test_a_slow_worker_gets_less_once_that_is_known(self) -> None:
        slow = Fault(worker=2, at=0.0, seconds=1000.0, factor=6.0)
        source = Replay(asks(600, every_s=0.1, families=600), 512)
        outcome = simulate(replace(CLUSTER, faults=(slow,)), source, 1)
        later = Counter(request.worker for request in outcome.requests if request.at > 20.0)
        assert later[2] < 0.5 * later[0]


class TestSlo:
    """Objectives."""

    def test_text_and_objective_are_the_same(self) -> None:
        for text in ("ttft=1.5s,tpot=50ms", "ttft=2s+1.5x,tpot=100ms", "ttft=0.2s", "tpot=12ms"):
            assert str(parse(text)) == text
        assert parse("ttft=1500ms") == Slo(ttft_s=1.5)

    @pytest.mark.parametrize("text", ["", "ttft", "ttft=1", "ttft=1.5.2s", "itl=5ms", "tpot=-5ms", "ttft=1s+x"])
    def test_what_is_none_is_named(self, text: str) -> None:
        with pytest.raises(BadSlo, match=r"ttft=1\.5s|write 50ms"):
            parse(text)

    def test_long_prompts_may_take_longer_where_the_objective_says_so(self) -> None:
        assert parse("ttft=1s+2x").is_met(ttft_s=4.9, decode_s=0, output_tokens=1, cold_s=2.0)
        assert not parse("ttft=1s").is_met(ttft_s=4.9, decode_s=0, output_tokens=1, cold_s=2.0)

    def test_failure_misses_every_objective(self) -> None:
        assert not Slo().is_met(FAILED, 0.0, 1, 0.0)


class TestTraces:
    """Files of requests."""

    def test_mooncake(self) -> None:
        read = traces.read(CONVERSATIONS)
        assert len(read) == 270
        assert [ask.at for ask in read] == sorted(ask.at for ask in read)
        assert all(len(ask.chain) == ask.prompt_tokens // 512 for ask in read)

    def test_azure(self, tmp_path: Path) -> None:
        file = tmp_path / "azure.csv"
        file.write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
        )
        first, second = traces.read(file)
        assert (first.at, first.prompt_tokens, first.output_tokens, first.chain) == (0.0, 374, 44, ())
        assert second.at == pytest.approx(4.314579)

    def test_our_own(self, tmp_path: Path) -> None:
        file = tmp_path / "own.csv"
        file.write_text("at_s,prompt_tokens,output_tokens,blocks,session\n2,1030,5,7 8 9,s1\n1,10,6,,\n")
        first, second = traces.read(file)
        assert (first.at, first.output_tokens) == (0.0, 6)
        assert (second.at, second.chain, second.session) == (1.0, (7, 8), "s1")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("", "columns are missing"),
            ("a,b\n1,2\n", "columns are a, b"),
            ("at_s,prompt_tokens,output_tokens\nx,1,1\n", "could not convert"),
            ("at_s,prompt_tokens,output_tokens\n", "no request"),
            ('{"timestamp": "x"}\n', "timestamp"),
            ("at_s,prompt_tokens,output_tokens\n1,-5,1\n", "negative"),
        ],
    )
    def test_what_is_no_trace_is_named(self, tmp_path: Path, content: str, says: str) -> None:
        file = tmp_path / "trace"
        file.write_text(content)
        with pytest.raises(BadTrace, match=says) as raised:
            traces.read(file)
        assert str(file) in str(raised.value)

    def test_speed_and_part(self) -> None:
        source = traces.replay(asks(100), speed=2.0, part=Slice(0.5, 1.0, limit=20))
        assert len(source.asks) == 20
        assert source.asks[-1].at == pytest.approx(19 * 0.1 / 2)
        assert [ask.measured for ask in source.asks] == [False] * 2 + [True] * 18
