"""The command line: `python -m benchmarks.policies --traces FOLDER [--scale quick|usual|full] [--json FILE]`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.policies import results as kept
from benchmarks.policies.cases import CASES, FEW, SCALES, Case, Scale
from benchmarks.policies.page import page
from benchmarks.policies.results import Result
from picker.simulation.discrete.compare import by_objective
from picker.simulation.discrete.slo import parse

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "policies.md"
STORE = Path(__file__).parent / "results.json"


def main(
    traces: Annotated[Path, typer.Option(help="Folder with the traces; see the README.", file_okay=False)] = Path(
        "traces"
    ),
    scale: Annotated[str, typer.Option(help="quick, usual or full.")] = "usual",
    quick: Annotated[bool, typer.Option("--quick", help="The same as --scale quick.")] = False,
    case: Annotated[list[str] | None, typer.Option(help="Only this case; repeatable.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Only this policy; repeatable.")] = None,
    minutes: Annotated[float, typer.Option(help="Begin nothing new after so many minutes.", min=0.0)] = 1e9,
    processes: Annotated[int, typer.Option(help="At the same time.", min=1)] = 2,
    json: Annotated[Path, typer.Option(help="Results; what is in it at this scale is not run again.")] = STORE,
    output: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
) -> None:
    """Measure what is missing, keep it, and write the page."""
    chosen = SCALES["quick" if quick else scale]
    found = kept.read(json)
    wanted = [
        (one, name)
        for name in policy or _by_interest(chosen.policies)
        for one in CASES
        if (case is None or one.name in case) and not _has(found, one, name, chosen)
    ]
    for results in _measure(wanted, traces, chosen, minutes * 60, processes):
        replaced = {(new.case, new.policy) for new in results}
        found = [old for old in found if (old.case, old.policy) not in replaced] + results
        kept.write(json, sorted(found, key=lambda each: (each.case, each.policy, each.slo)))
    output.write_text(page(found))


def _by_interest(policies: Iterable[str]) -> list[str]:
    """The default and what it is most compared with first: a run that is broken off has something to show."""
    return sorted(policies, key=lambda name: FEW.index(name) if name in FEW else len(FEW))


def _measure(wanted: list[tuple[Case, str]], traces: Path, scale: Scale, seconds: float, processes: int):  # type: ignore[no-untyped-def]
    columns = (TextColumn("{task.description:32}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + seconds
    with Progress(*columns) as progress, ProcessPoolExecutor(processes) as pool:
        bar = progress.add_task("", total=len(wanted))
        futures = {pool.submit(_one, one.name, name, traces, scale, deadline): (one.name, name) for one, name in wanted}
        for future in as_completed(futures):
            progress.update(bar, advance=1, description=" ".join(futures[future]))
            if results := future.result():
                yield results


def _one(case: str, policy: str, traces: Path, scale: Scale, deadline: float) -> list[Result]:
    if time.monotonic() > deadline:
        return []
    one = next(one for one in CASES if one.name == case)
    question, slos = one.question(policy, traces, scale), one.objectives(policy)
    answers = by_objective(question, policy, [parse(slo) for slo in slos])
    return [
        kept.of(answer, case, scale.name, question.workload.unit, "" if slo == one.slo else slo)
        for slo, answer in zip(slos, answers, strict=True)
    ]


def _has(found: list[Result], case: Case, policy: str, scale: Scale) -> bool:
    there = {
        old.slo or case.slo for old in found if (old.case, old.policy, old.scale) == (case.name, policy, scale.name)
    }
    return there.issuperset(case.objectives(policy))


if __name__ == "__main__":
    typer.run(main)
