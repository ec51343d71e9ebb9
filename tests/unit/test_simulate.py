"""`picker simulate`: workloads, the search for what holds, and the command line."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from picker.cli import app
from picker.scheduling import policies
from picker.simulation.discrete import capacity, settings
from picker.simulation.discrete.capacity import Mean, Runs, Search, mean, ratio
from picker.simulation.discrete.cluster import Cluster, Fault, simulate
from picker.simulation.discrete.compare import Question, answer
from picker.simulation.discrete.outcome import FAILED, Outcome, Request
from picker.simulation.discrete.settings import BadOption
from picker.simulation.discrete.slo import parse
from picker.simulation.discrete.synthetic import BEHAVIOURS, Users, bursts
from picker.simulation.discrete.workload import Replay
from picker.simulation.discrete.workloads import NAMES, UnknownWorkload, Workload, named
from picker.simulation.profiles import PROFILES
from picker.simulation.trace import CONVERSATIONS

CLUSTER = Cluster(PROFILES["8b"], workers=2)
SLO = parse("ttft=1s,tpot=50ms")


class TestUsers:
    """Closed loops."""

    def asks(self, policy: str, users: int = 6, name: str = "agents") -> list[Request]:
        source = Users(BEHAVIOURS[name], users, 1, warm_s=10.0, until_s=60.0)
        return list(simulate(replace(CLUSTER, policy=policy), source, 1).requests)

    def test_a_user_waits_for_the_answer_before_asking_again(self) -> None:
        source = Users(BEHAVIOURS["agents"], 1, 1, warm_s=10.0, until_s=100.0)
        requests = sorted(simulate(CLUSTER, source, 1).requests, key=lambda request: request.at)
        assert len(requests) > 10
        for one, following in pairwise(requests):
            assert following.at > one.at + one.ttft_s + one.decode_s

    def test_conversations_grow_until_another_begins(self) -> None:
        lengths = [request.prompt_tokens for request in sorted(self.asks("random", users=1), key=lambda r: r.at)]
        assert any(later > earlier for earlier, later in pairwise(lengths))
        assert max(lengths) <= 64_000

    def test_users_ask_the_same_whatever_the_policy(self) -> None:
        one, other = (sorted((r.prompt_tokens for r in self.asks(policy)), key=int) for policy in ("random", "llm-d"))
        # One of them may have got further by the end.
        assert len(set(one) ^ set(other)) <= 0.3 * len(one)

    def test_a_turn_finds_the_turns_before_it_cached(self) -> None:
        requests = self.asks("session-hash", users=2)
        assert sum(r.cached_tokens for r in requests) > 0.7 * sum(r.prompt_tokens for r in requests)

    def test_adapters_cost_where_they_are_not_loaded(self) -> None:
        behaviour = replace(BEHAVIOURS["adapters"], prompts=8, adapters=8, zipf=0.0)
        source = Users(behaviour, 30, 1, warm_s=10.0, until_s=100.0)
        blind, aware = (
            simulate(replace(CLUSTER, workers=4, policy=policy), source, 1).figures(SLO).ttft_p50_s
            for policy in ("random", "expected-delay")
        )
        assert aware < blind

    def test_long_contexts_are_reported_by_themselves(self) -> None:
        behaviour = replace(BEHAVIOURS["long-contexts"], long_share=0.3)
        outcome = simulate(CLUSTER, Users(behaviour, 8, 1, warm_s=10.0, until_s=60.0), 1)
        assert set(outcome.figures(SLO).attained_by_kind) == {"long", "short"}

    def test_bursts_come_in_waves(self) -> None:
        asks = bursts(20.0, seed=1, until_s=100.0).asks
        assert len(asks) == pytest.approx(2000, rel=0.1)
        crest = sum(5 < ask.at % 20 < 15 for ask in asks)
        assert crest > 0.9 * len(asks)

    @pytest.mark.parametrize("name", NAMES)
    def test_every_workload_runs(self, name: str) -> None:
        workload = named(name, warm_s=5.0, until_s=15.0)
        outcome = simulate(replace(CLUSTER, workers=4), workload.build(4, 1), 1)
        assert all(request.ttft_s < FAILED for request in outcome.requests)
        assert outcome.measured()

    def test_an_unknown_workload_is_named(self) -> None:
        with pytest.raises(UnknownWorkload, match="there are: agents"):
            named("nope")


class TestCapacity:
    """The search for the most that holds."""

    @pytest.fixture
    def staged(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """Attainment falls in a line from 1 at 0 to 0 at 1,000 users; the amounts that were run."""
        amounts: list[float] = []

        def run(cluster: Cluster, source: Replay, seed: int, patience: object) -> Outcome:
            amounts.append(source.block_tokens)
            good = round(1000 - source.block_tokens)
            return Outcome([_request(number < good) for number in range(1000)], [])

        monkeypatch.setattr(capacity, "simulate", run)
        return amounts

    def search(self) -> Search:
        workload = Workload("line", "users", lambda amount, seed: Replay([], round(amount)), is_whole=True)
        return Search(Runs(CLUSTER, workload, SLO, seed=1, least_level=0.9), SLO)

    @pytest.mark.parametrize("hint", [1, 20, 95, 100, 110, 900])
    def test_it_is_found_from_anywhere_within_a_step_of_the_grid(self, staged: list[float], hint: float) -> None:
        held = self.search().held(0.9, hint)
        assert 100 / 1.03 <= held.amount <= 100
        assert len(staged) <= 20

    def test_levels_share_runs(self, staged: list[float]) -> None:
        search = self.search()
        search.held(0.9, 50)
        before = len(staged)
        assert search.held(0.9, 50).amount <= 100
        assert len(staged) == before
        assert 10 / 1.1 <= search.held(0.99, 50).amount <= 10

    def test_what_never_holds_is_nothing(self, staged: list[float]) -> None:
        assert self.search().held(0.9999, 5).amount == 0.0

    def test_it_agrees_with_the_simulation(self) -> None:
        question = Question(CLUSTER, named("chat", 10.0, 40.0), SLO, (0.9,), (1, 2), 100.0)
        found = answer(question, "least-request")
        assert all(held.figures and held.figures.attained >= 0.9 for held in found.held[0.9])
        assert found.amount(0.9).half_width is not None
        above = {amount: attained for amount, attained in found.curve if amount > found.amounts(0.9)[0]}
        assert min(above) and above[min(above)] < 0.9

    def test_means_and_ratios_have_students_interval(self) -> None:
        assert mean([1.0, 2.0, 3.0]) == Mean(2.0, pytest.approx(4.30 / 3**0.5))  # type: ignore[arg-type]
        assert mean([5.0]) == Mean(5.0, None)
        assert ratio([2.0, 4.0], [1.0, 2.0]) == Mean(2.0, 0.0)
        assert ratio([2.0], [0.0]) is None


def _request(is_good: bool) -> Request:
    return Request(0.0, 0.1 if is_good else 99.0, 0.1, 0.1, 10, 10, 0, 0, "", True)


class TestOptions:
    """What the command line says."""

    def test_a_profile_of_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("mine: {a: 0.01, b: 1.0e-5, q: 0, d: 1.0e-5, e: 0, kv_tokens: 100000}")
        assert settings.profile("mine", file).kv_tokens == 100_000
        assert settings.profile("8b", file) == PROFILES["8b"]
        with pytest.raises(BadOption, match="there are: 70b, 32b, 8b, demo, mine"):
            settings.profile("other", file)

    def test_a_profile_with_a_wrong_constant_is_named(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.yaml"
        file.write_text("mine: {a: fast}")
        with pytest.raises(BadOption, match="mine"):
            settings.profile("mine", file)

    def test_faults(self) -> None:
        assert settings.fault("worker=3,at=60,for=30", 4) == Fault(3, 60.0, 30.0)
        assert settings.fault("worker=0,at=1,for=2,slow=4", 4) == Fault(0, 1.0, 2.0, 4.0)
        for text in ("", "worker=4,at=1,for=1", "worker=1,at=-1,for=1", "worker=1,at=1", "worker=1,at=1,for=1,x=2"):
            with pytest.raises(BadOption, match="--fault"):
                settings.fault(text, 4)

    def test_levels(self) -> None:
        assert settings.levels("99,90") == (0.90, 0.99)
        for text in ("", "0", "100", "x"):
            with pytest.raises(BadOption, match="--level"):
                settings.levels(text)


SMALL = ["--workers", "2", "--profile", "8b", "--seconds", "20"]


class TestCommand:
    """The command line."""

    def call(self, *arguments: str) -> str:
        result = CliRunner().invoke(app, ["simulate", *arguments])
        assert result.exit_code == 0, result.output
        return result.output

    def test_run_prints_a_column_for_each_policy_and_writes_json(self, tmp_path: Path) -> None:
        file = tmp_path / "run.json"
        output = self.call("run", "--load", "10", *SMALL, "--policy", "random,llm-d", "--json", str(file))
        assert "random" in output and "llm-d" in output and "prompt tokens from cache" in output
        assert set(json.loads(file.read_text())["runs"]) == {"random", "llm-d"}

    def test_run_replays_a_part_of_a_trace(self) -> None:
        options = ["--trace", str(CONVERSATIONS), "--load", "1", "--workers", "8", "--policy", "random"]
        # Less a tenth that warms up.
        assert " 243 " in self.call("run", *options)
        assert " 122 " in self.call("run", *options, "--part", "0.5", "1")

    def test_users_and_compare_print_throughput_beside_amounts(self, tmp_path: Path) -> None:
        file = tmp_path / "answer.json"
        output = self.call(
            "compare", *SMALL, "--policy", "random,expected-delay", "--level", "90", "--seeds", "2", "--json", str(file)
        )
        assert "±" in output
        answers = json.loads(file.read_text())["answers"]
        assert [each["policy"] for each in answers] == ["random", "expected-delay"]
        assert "output" in self.call("users", *SMALL, "--level", "90", "--seeds", "1")

    @pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs the extra `simulate`")
    @pytest.mark.parametrize("suffix", [".png", ".html", ".svg"])
    def test_plots(self, tmp_path: Path, suffix: str) -> None:
        run, found = tmp_path / f"run{suffix}", tmp_path / f"answer{suffix}"
        self.call("run", "--load", "5", *SMALL, "--policy", "random", "--plot", str(run))
        self.call("users", *SMALL, "--level", "90", "--seeds", "1", "--plot", str(found))
        beginning = {".png": b"\x89PNG", ".html": b"<!doctype html>", ".svg": b"<?xml"}[suffix]
        assert run.read_bytes().startswith(beginning)
        assert found.read_bytes().startswith(beginning)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--policy", "nope"], "there is no policy 'nope'"),
            (["--workload", "nope"], "there is no workload 'nope'"),
            (["--profile", "nope"], "there is no profile 'nope'"),
            (["--slo", "nope"], "no objective"),
            (["--fault", "nope"], "--fault nope"),
            (["--plot", "x.gif"], "must end in .png"),
            (["--plot", "no/such/folder/x.png"], "no folder"),
            (["--trace", "no-such-file"], "cannot be read"),
        ],
    )
    def test_what_makes_no_sense_is_named(self, arguments: list[str], says: str) -> None:
        result = CliRunner().invoke(app, ["simulate", "run", "--load", "5", *SMALL, *arguments])
        assert result.exit_code == 2
        assert says in result.output

    def test_policies_and_workloads_are_listed(self) -> None:
        assert "expected-delay" in self.call("policies")
        assert "assistants" in self.call("workloads")


class TestDocs:
    """`docs/simulation.md` says what is there."""

    text = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text()

    def test_every_option_that_it_names_exists(self) -> None:
        command = get_command(app).commands["simulate"]  # type: ignore[attr-defined]
        known = {name for each in command.commands.values() for param in each.params for name in param.opts}
        named_there = set(re.findall(r"(?<![-\w])--[a-z][a-z-]+", self.text))
        assert len(named_there) > 10
        assert named_there - known == set()

    def test_its_profile_can_be_read(self, tmp_path: Path) -> None:
        [example] = re.findall(r"```yaml\n(.*?)```", self.text, re.DOTALL)
        file = tmp_path / "profiles.yaml"
        file.write_text(example)
        assert settings.profile("mine", file).kv_tokens == 350_000

    def test_the_readme_counts_the_policies_rightly(self) -> None:
        assert len(policies.POLICIES) == 17
        assert "seventeen policies" in (Path(__file__).parents[2] / "README.md").read_text()
