"""The command line: `python -m benchmarks.overload --trace FILE [--quick] [--seeds N] [--json FILE] [--doc PAGE]`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.common.doc import put
from benchmarks.overload.cases import CASES, Case, Row, run
from benchmarks.overload.report import markdown, table
from picker.simulation.discrete.traces import BadTrace


def main(
    trace: Annotated[Path, typer.Option(help="Mooncake's conversation_trace.jsonl.", exists=True, dir_okay=False)],
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the requests, one seed.")] = False,
    seeds: Annotated[int, typer.Option(help="Runs of each case.", min=1)] = 3,
    experiment: Annotated[list[str] | None, typer.Option(help="Only this experiment; repeatable.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    doc: Annotated[Path | None, typer.Option(help="Put the table into this page, between its marks.")] = None,
    processes: Annotated[int, typer.Option(help="Runs at the same time.", min=1)] = 2,
) -> None:
    """Show what becomes of traffic beyond capacity, with admission and without."""
    console = Console()
    runs = [
        (case, seed)
        for case in CASES
        for seed in range(1, 2 if quick else 1 + seeds)
        if not experiment or case.experiment in experiment
    ]
    try:
        rows = _run(runs, trace, 1000 if quick else 4000, processes, console)
    except BadTrace as error:
        console.print(f"benchmark: {error}", style="red")
        raise typer.Exit(2) from None
    console.print(table(rows))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
    if doc:
        put(doc, "benchmarks.overload", markdown(rows))


def _run(runs: Sequence[tuple[Case, int]], trace: Path, requests: int, processes: int, console: Console) -> list[Row]:
    with ProcessPoolExecutor(processes) as pool:
        found = [pool.submit(run, case, seed, trace, requests) for case, seed in runs]
        return [each.result() for each in track(found, "simulating", console=console, transient=True)]


if __name__ == "__main__":
    typer.run(main)
