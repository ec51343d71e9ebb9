"""The command line: `python -m benchmarks.prompts [--quick] [--json FILE]`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.prompts.contenders import CONTENDERS
from benchmarks.prompts.measure import Measurement, Task
from picker.simulation.words import DEMO_TOKENIZER

SIZES = (1_000, 8_000, 32_000, 128_000)
_REPEATS = 9
_WIDTH = 110
_COLUMNS = ("wall ms", "CPU ms", "x plain", "longest stall ms", "idle stall ms", "held ms", "peak MB")


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Up to 32,000 tokens, three repeats.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    tokenizer: Annotated[
        Path, typer.Option(help="Folder with a tokenizer.json and a chat template.", file_okay=False, exists=True)
    ] = DEMO_TOKENIZER,
) -> None:
    """Measure what a prompt costs on its way to a prefix chain: unseen, and with its last turn new."""
    console = Console()
    console.width = max(console.width, _WIDTH)
    tasks = [
        Task(contender.label, str(tokenizer.resolve()), size, at_once, 3 if quick else _REPEATS)
        for size in (SIZES[:3] if quick else SIZES)
        for at_once in (1, 8)
        for contender in CONTENDERS
    ]
    found = [_in_process(task) for task in track(tasks, "measuring", console=console, transient=True)]
    for table in _tables(found):
        console.print(table)
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


def _in_process(task: Task) -> Measurement:
    command = [sys.executable, "-m", "benchmarks.prompts.measure"]
    # One core for each thread of ours is what a picker gives the tokenizers.
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, input=msgspec.json.encode(task), stdout=subprocess.PIPE, check=True, env=environment)
    return msgspec.json.decode(done.stdout, type=Measurement)


def _tables(found: Sequence[Measurement]) -> Iterator[Table]:
    for (size, at_once), group in groupby(found, lambda each: (each.task.tokens, each.task.at_once)):
        title = f"{size:,} tokens" + (f", {at_once} at once" if at_once > 1 else "")
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        table.add_column("contender", no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        rows = list(group)
        for row in rows:
            table.add_row(*_cells(row, rows[0].cpu_ms))
        yield table


def _cells(row: Measurement, plain_cpu_ms: float) -> tuple[str, ...]:
    return (
        row.task.contender,
        f"{row.wall_ms:.1f}",
        f"{row.cpu_ms:.2f}",
        f"{row.cpu_ms / plain_cpu_ms:.3f}",
        f"{row.stall_ms:.1f} (worst {row.worst_stall_ms:.1f})",
        f"{row.idle_stall_ms:.1f}",
        f"{row.held_ms:.1f}",
        f"{row.peak_mb:.0f}",
    )


if __name__ == "__main__":
    typer.run(main)
