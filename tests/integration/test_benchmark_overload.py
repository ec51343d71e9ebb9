"""The benchmark of overload runs, on a small trace of its own."""

from pathlib import Path

import pytest

from benchmarks.overload.cases import AT_ONCE, CASES, FULL, Case, How, run
from benchmarks.overload.drive import run as run_live
from benchmarks.overload.live import lines, problems


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts that share nothing, half as many again as 16 workers can serve in time."""
    path = tmp_path_factory.mktemp("overload") / "trace.csv"
    rows = [f"{number / 6},6000,200" for number in range(2000)]
    path.write_text("\n".join(["at_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return path


def test_admission_keeps_what_immediate_placement_loses(trace: Path) -> None:
    rows = {}
    hows: tuple[How, ...] = (AT_ONCE, FULL)
    for how in hows:
        rows[how] = run(Case("rates", 1.5, how), 1, trace, 800)
    assert rows[FULL].refused > 0 == rows[AT_ONCE].refused
    assert rows[FULL].goodput > 1.2 * rows[AT_ONCE].goodput


def test_the_higher_class_is_served_and_the_lower_one_is_shed(trace: Path) -> None:
    row = run(Case("classes", 1.5, FULL, "classes"), 1, trace, 800)
    assert row.by_kind["interactive"] > 0.95 > 0.9 > row.by_kind["batch"]


def test_a_heavy_tenant_is_shed_and_not_the_others(trace: Path) -> None:
    row = run(Case("tenants", 1.5, FULL, "tenants"), 1, trace, 800)
    assert row.by_kind["others"] > 0.95 > 0.9 > row.by_kind["heavy"]


@pytest.mark.envoy
async def test_beyond_capacity_through_envoy_each_request_is_answered_once_and_nothing_is_left() -> None:
    report = await run_live(12.0)
    assert problems(report) == []
    assert {answer.status for answer in report.answers} == {200, 429}
    assert all(answer.reason for answer in report.answers if answer.status == 429)
    assert len(list(lines(report))) > 8


def test_each_experiment_compares_with_placing_at_once() -> None:
    assert {case.experiment for case in CASES if case.how == AT_ONCE} == {case.experiment for case in CASES}
