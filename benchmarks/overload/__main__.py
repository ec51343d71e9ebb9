"""The command line: `python -m benchmarks.overload --trace FILE [--quick] [--json FILE]`."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.overload.cases import CASES, Row, run
from picker.simulation.discrete.traces import BadTrace


def main(
    trace: Annotated[Path, typer.Option(help="Mooncake's conversation_trace.jsonl.", exists=True, dir_okay=False)],
    quick: Annotated[bool, typer.Option("--quick", help="A quarter of the requests.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    processes: Annotated[int, typer.Option(help="Runs at the same time.", min=1)] = 2,
) -> None:
    """Show what becomes of traffic beyond capacity, with admission and without."""
    console = Console()
    work = partial(run, trace=trace, requests=1000 if quick else 4000)
    try:
        with ProcessPoolExecutor(processes) as pool:
            found = pool.map(work, CASES)
            rows = list(track(found, "simulating", total=len(CASES), console=console, transient=True))
    except BadTrace as error:
        console.print(f"benchmark: {error}", style="red")
        raise typer.Exit(2) from None
    console.print(_table(rows))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=box.SIMPLE)
    for name in ("experiment", "load", "", "in time", "refused", "goodput tok/s", "cached", "in time, by kind"):
        table.add_column(name)
    for row in sorted(rows, key=lambda row: (row.case.experiment, row.case.load)):
        kinds = ", ".join(f"{name} {share:.1%}" for name, share in row.by_kind.items())
        case = row.case
        how = f"{case.how} ({case.mix})" if case.mix == "others alone" else case.how
        figures = f"{row.in_time:.1%}", f"{row.refused:.1%}", f"{row.goodput:,.0f}", f"{row.hit:.0%}"
        table.add_row(case.experiment, f"{case.load:g}", how, *figures, kinds)
    return table


if __name__ == "__main__":
    typer.run(main)
