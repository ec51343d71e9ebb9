"""The command line: `python -m benchmarks.decide [--quick] [--json FILE]`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.decide.by_loop import decide_by_loop
from benchmarks.decide.fleet import PROMPT_BLOCKS, SPREADS, busy_fleet, prompt
from picker.fleet.view import View
from picker.scheduling.decide import decide
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import find
from picker.scheduling.request import SchedulingRequest

WORKERS = (16, 64, 256, 1000)
_MODEL = WorkerModel()


@dataclass(frozen=True)
class Row:
    """Thread CPU time of one decision, microseconds; `x_loop` is the loop's median over ours."""

    workers: int
    spread: str
    policy: str
    p50_us: float
    p99_us: float
    x_loop: float


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    policy: Annotated[str, typer.Option(help="By its name.")] = "expected-delay",
) -> None:
    """Measure what a decision costs, by the size of the fleet and by how many workers hold how much of the prompt."""
    console = Console()
    cases = [(workers, spread) for workers in WORKERS for spread in SPREADS]
    repeats = 50 if quick else 1000
    rows = [
        _measure(workers, spread, policy, repeats)
        for workers, spread in track(cases, "measuring", console=console, transient=True)
    ]
    console.print(_table(rows, policy))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


def _measure(workers: int, spread: str, policy: str, repeats: int) -> Row:
    view, wanted, chosen = busy_fleet(workers, SPREADS[spread]), prompt(), find(policy)
    rng = Random(0)
    ours = _times(lambda: decide(wanted, view, chosen, _MODEL, 10.0, rng), repeats)
    loop = _times(_loop(view, wanted), max(10, repeats // 20))
    return Row(workers, spread, policy, median(ours), quantiles(ours, n=100)[98], median(loop) / median(ours))


def _loop(view: View, wanted: SchedulingRequest) -> Callable[[], object]:
    rng = Random(0)
    return lambda: decide_by_loop(wanted, view, _MODEL, 10.0, rng)


def _times(work: Callable[[], object], repeats: int) -> list[float]:
    work()
    found = []
    for _ in range(repeats):
        started = time.thread_time_ns()
        work()
        found.append((time.thread_time_ns() - started) / 1000)
    return found


def _table(rows: list[Row], policy: str) -> Table:
    title = f"One decision of {policy} about a prompt of {PROMPT_BLOCKS:,} blocks"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("workers", "the prompt is held", "p50 us", "p99 us", "a loop over workers takes"):
        table.add_column(column, justify="left" if "held" in column else "right", no_wrap=True)
    for row in rows:
        cells = (f"{row.workers:,}", row.spread, f"{row.p50_us:.0f}", f"{row.p99_us:.0f}", f"{row.x_loop:.1f} x")
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    typer.run(main)
