"""The long form: `python -m tests.chaos --help`."""

from __future__ import annotations

import asyncio
import itertools
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common.doc import put
from picker.simulation.process import DidNotStart
from tests.chaos.faults import FAULTS
from tests.chaos.run import PER_S, Verdict, rig, suffer
from tests.chaos.shapes import SHAPES
from tests.chaos.table import runs_of, table

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
    first, *others = shape or list(SHAPES)
    elsewhere = [faults for faults in chosen if not any(FAULTS[name].once for name in faults)]
    work = {first: chosen * runs} | dict.fromkeys(others, elsewhere * runs)
    verdicts: list[Verdict] = []

    def note(verdict: Verdict) -> None:
        verdicts.append(verdict)
        _tell(verdict)
        if write:
            put(write, "tests.chaos", f"{per_s:g} requests a second, {runs_of(verdicts)}.\n\n{table(verdicts)}\n")

    asyncio.run(_suffer_shapes(work, at_once, per_s, note))
    raise typer.Exit(not all(verdict.is_well for verdict in verdicts))


def _differ(one: str, other: str) -> bool:
    """Not two faults of the same part: the second would find it dead."""
    return FAULTS[one].part != FAULTS[other].part


_Note = Callable[[Verdict], None]
_STARTS = 50
"""Of a stack, for one shape. A fault that it does not survive costs one, and so does a port that is taken meanwhile."""


async def _suffer_shapes(work: Mapping[str, Sequence[_Faults]], at_once: int, per_s: float, note: _Note) -> None:
    room = asyncio.Semaphore(at_once)

    async def one(shape: str, chosen: Sequence[_Faults]) -> None:
        left = list(chosen)
        async with room:
            for _ in range(_STARTS):
                try:
                    await _suffer_all(shape, left, per_s, note)
                except DidNotStart as error:
                    typer.echo(f"{shape}: {error}", err=True)
                if not left:
                    break

    async with asyncio.TaskGroup() as tasks:
        for shape, chosen in work.items():
            tasks.create_task(one(shape, chosen))


async def _suffer_all(shape: str, left: list[_Faults], per_s: float, note: _Note) -> None:
    """One after the other; what did not become whole again is not asked to bear the next one."""
    with tempfile.TemporaryDirectory(prefix="picker-chaos-") as folder:
        async with rig(shape, Path(folder)) as made:
            while left:
                faults = left.pop(0)
                if not all(FAULTS[name].can(made) for name in faults):
                    continue
                verdict = None
                try:
                    verdict = await suffer(made, shape, faults, per_s)
                except* DidNotStart as errors:
                    # In a minute: that says more of a busy machine than of the fault, which is had again.
                    typer.echo(f"{shape}, {' + '.join(faults)}: {errors.exceptions}"[:500], err=True)
                    left.append(faults)
                if verdict is None:
                    break
                note(verdict)
                if not verdict.is_well:
                    break


def _tell(verdict: Verdict) -> None:
    fates = verdict.fates
    refused = sum(fates.refused.values())
    typer.echo(
        f"{verdict.shape}, {' + '.join(verdict.faults)}: {fates.sent} sent, {fates.answered} answered, "
        f"{refused} refused, {fates.broken} broke off, {len(fates.lost)} lost, whole after {verdict.recovered_s:.1f} s"
    )
    for line in (*fates.lost[:5], *verdict.wrong):
        typer.echo(f"    {line}")


if __name__ == "__main__":
    typer.run(main)
