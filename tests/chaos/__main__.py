"""The long form: `python -m tests.chaos --help`."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tests.chaos.faults import FAULTS
from tests.chaos.run import PER_S, Verdict, rig, suffer
from tests.chaos.shapes import SHAPES
from tests.chaos.table import table

BEGIN, END = "<!-- written by python -m tests.chaos -->", "<!-- end -->"


_Faults = tuple[str, ...]


def main(
    shape: Annotated[list[str] | None, typer.Option(help=f"Of Redis: {', '.join(SHAPES)}; all by default.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="By name, see --list; all by default.")] = None,
    pairs: Annotated[int, typer.Option(help="So many pairs of faults at once as well, by chance.")] = 0,
    runs: Annotated[int, typer.Option(help="How often.")] = 1,
    at_once: Annotated[int, typer.Option(help="So many shapes at the same time.")] = 1,
    per_s: Annotated[float, typer.Option(help="Requests a second.")] = PER_S,
    write: Annotated[Path | None, typer.Option(help="Put the table into this page.", dir_okay=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="Only name the faults.")] = False,
) -> None:
    """Let parts fail under load, count what becomes of each request, and see whether the view is right afterwards."""
    if list_:
        typer.echo("\n".join(FAULTS))
        raise typer.Exit
    chosen: list[_Faults] = [(name,) for name in fault or FAULTS]
    chosen += random.Random(0).sample([pair for pair in itertools.combinations(FAULTS, 2) if _differ(*pair)], pairs)
    verdicts = asyncio.run(_suffer_shapes(shape or list(SHAPES), chosen * runs, at_once, per_s))
    if write:
        before, _, rest = write.read_text().partition(BEGIN)
        head = f"{per_s:g} requests a second, {runs} runs."
        write.write_text(f"{before}{BEGIN}\n\n{head}\n\n{table(verdicts)}\n\n{END}{rest.partition(END)[2]}")
    raise typer.Exit(not all(verdict.is_well for verdict in verdicts))


def _differ(one: str, other: str) -> bool:
    """Not two faults of the same part: the second would find it dead."""
    return FAULTS[one].part != FAULTS[other].part


async def _suffer_shapes(shapes: Sequence[str], chosen: Sequence[_Faults], at_once: int, per_s: float) -> list[Verdict]:
    console, room = Console(width=200), asyncio.Semaphore(at_once)

    async def one(shape: str) -> list[Verdict]:
        async with room:
            return await _suffer_all(shape, chosen, per_s, console)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one(shape)) for shape in shapes]
    return [verdict for task in running for verdict in task.result()]


async def _suffer_all(shape: str, chosen: Iterable[_Faults], per_s: float, console: Console) -> list[Verdict]:
    """One after the other; what did not become whole again is not asked to bear the next one."""
    verdicts, left = [], list(chosen)
    while left:
        with tempfile.TemporaryDirectory(prefix="picker-chaos-") as folder:
            async with rig(shape, Path(folder)) as made:
                while left:
                    faults = left.pop(0)
                    if not all(FAULTS[name].can(made) for name in faults):
                        continue
                    verdicts.append(verdict := await suffer(made, shape, faults, per_s))
                    _tell(verdict, console)
                    if not verdict.is_well:
                        break
    return verdicts


def _tell(verdict: Verdict, console: Console) -> None:
    fates = verdict.fates
    refused = sum(fates.refused.values())
    console.print(
        f"{verdict.shape}, {' + '.join(verdict.faults)}: {fates.sent} sent, {fates.answered} answered, "
        f"{refused} refused, {fates.broken} broke off, {len(fates.lost)} lost, whole after {verdict.recovered_s:.1f} s"
    )
    for line in (*fates.lost[:5], *verdict.wrong):
        console.print(f"    {line}", style="red")


if __name__ == "__main__":
    typer.run(main)
