"""`docs/policies.md` is what the results say, and the results are what production still does."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.policies.__main__ import PAGE, STORE
from benchmarks.policies.cases import CASES, DEFAULT, LEVELS, SCALES
from benchmarks.policies.page import page
from benchmarks.policies.results import Result, key, read, write
from picker.scheduling.policies import POLICIES
from picker.simulation.discrete.cluster import simulate


def result(policy: str, amount: float, case: str = "rag-32b", output: float = 1000.0) -> Result:
    amounts = {key(level): [amount, amount] for level in LEVELS}
    return Result(case, policy, "quick", "users", amounts, {level: [output, output] for level in amounts}, 10)


def test_the_page_is_what_the_results_say() -> None:
    assert PAGE.read_text() == page(read(STORE))


def test_production_still_does_what_the_page_says() -> None:
    """Within two points, since a policy may change a little; if it changes more, measure again: `make reproduce`."""
    case = CASES[0]
    [own] = [each for each in read(STORE) if (each.case, each.policy, each.slo) == (case.name, DEFAULT, "")]
    question = case.question(DEFAULT, Path(), SCALES[own.scale])
    amount = own.amounts[key(0.95)][0]
    outcome = simulate(question.cluster, question.workload.build(amount, 1), 1)
    assert outcome.attained(question.slo) > 0.93
    assert outcome.figures(question.slo).output_rate == pytest.approx(own.outputs[key(0.95)][0], rel=0.03)


def test_a_policy_that_is_behind_is_said_to_be() -> None:
    behind = page([result(DEFAULT, 90), result("lmetric", 100)])
    even = page([result(DEFAULT, 98), result("lmetric", 100)])
    best = page([result(DEFAULT, 110), result("lmetric", 100)])
    assert "| rag-32b | 90 ± 0 | lmetric 100 ± 0 | 0.90 | **behind** |" in behind
    assert "| rag-32b | 98 ± 0 | lmetric 100 ± 0 | 0.98 | even |" in even
    assert "| rag-32b | 110 ± 0 | lmetric 100 ± 0 | 1.10 | best |" in best


def test_throughput_stands_beside_every_amount() -> None:
    rows = page([result(DEFAULT, 90, output=1234.0), result("lmetric", 100, output=4321.0)]).splitlines()
    [own] = [row for row in rows if row.startswith(f"| **{DEFAULT}**")]
    [peer] = [row for row in rows if row.startswith("| lmetric |")]
    assert own.count("1,234") == peer.count("4,321") == len(LEVELS)
    assert peer.count("1.11") == len(LEVELS)


def test_what_holds_nothing_has_no_ratio() -> None:
    text = page([result(DEFAULT, 90, "assistants"), result("round-robin", 0, "assistants", 0.0)])
    rows = [row for row in text.splitlines() if row.startswith("| ttft=1.5s,tpot=50ms |")]
    assert len(rows) == len(LEVELS)
    assert all(row.endswith("| - | - |") for row in rows)


def test_other_objectives_of_the_headline_stand_in_its_table_and_in_no_other() -> None:
    strict = [replace(result(policy, 50, "assistants"), slo="ttft=1s,tpot=35ms") for policy in (DEFAULT, "round-robin")]
    text = page([result(DEFAULT, 90, "assistants"), result("round-robin", 9, "assistants"), *strict])
    assert text.count("| ttft=1s,tpot=35ms |") == len(LEVELS)
    assert "| **expected-delay** | 50" not in text


def test_what_was_measured_at_another_scale_is_not_compared() -> None:
    text = page([replace(result(DEFAULT, 90), scale="usual"), result("lmetric", 100)])
    assert "| rag-32b | 90" not in text
    assert "| lmetric | 100" not in text


def test_every_policy_is_listed() -> None:
    text = page([])
    assert all(f"| `{name}` | {policy.summary} |" in text for name, policy in POLICIES.items())


def test_results_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    written = [result(DEFAULT, 90), result("lmetric", 100.5)]
    write(file, written)
    assert read(file) == written
    assert read(tmp_path / "none.json") == []


def test_names_of_cases_are_different() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
