"""The command line: `python -m benchmarks.beside [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.beside.measure import Found, Plan, measure
from benchmarks.common.load import precise_loop
from picker.simulation.words import DEMO_TOKENIZER
from picker.threads import SWITCH_INTERVAL_S

STANDARD = Plan(rounds=5, seconds=5)
QUICK = Plan(rounds=1, seconds=2)
_COLUMNS = ("alone p50 ms", "p99", "beside p50 ms", "p99", "+p50 ms", "+p99 ms", "CPU ms of a long pick")


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    tokenizer: Annotated[
        Path, typer.Option(help="Folder with a tokenizer.json and a chat template.", file_okay=False, exists=True)
    ] = DEMO_TOKENIZER,
) -> None:
    """Measure what warm picks of 128,000 tokens do to 200 picks of 2 KB a second beside them."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    plan, found = QUICK if quick else STANDARD, []
    for tokenizes in (False, True):
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            found.append(runner.run(measure(plan, tokenizer, tokenizes)))
    Console(width=130).print(_table(plan, found))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def _table(plan: Plan, found: Sequence[Found]) -> Table:
    title = f"{plan.short_per_s:g} picks of 2 KB a second beside {plan.long_per_s:g} of {plan.long_tokens:,} tokens"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("prompts read as", no_wrap=True)
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for row in found:
        phases = (row.alone.p50_ms, row.alone.p99_ms, row.beside.p50_ms, row.beside.p99_ms)
        cells = (*phases, row.added_p50_ms, row.added_p99_ms, row.long_cpu_ms)
        table.add_row(row.read_as, *(f"{cell:.2f}" for cell in cells))
    return table


if __name__ == "__main__":
    typer.run(main)
