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

from tests.chaos.faults import FAULTS, OF_THE_NETWORK
from tests.chaos.run import PER_S, Verdict, rig, suffer
from tests.chaos.shapes import SHAPES

BEGIN, END = "<!-- written by python -m tests.chaos -->", "<!-- end -->"
_HEAD = "| Redis | fault | sent | answered | refused | lost | s until whole again | predictions wrong |"


def main(
    shape: Annotated[list[str] | None, typer.Option(help="Of Redis; all by default.")] = None,
    fault: Annotated[list[str] | None, typer.Option(help="By name; all by default.")] = None,
    pairs: Annotated[int, typer.Option(help="So many pairs of faults at once as well, by chance.")] = 0,
    runs: Annotated[int, typer.Option(help="How often.")] = 1,
    write: Annotated[Path | None, typer.Option(help="Put the table into this page.", dir_okay=False)] = None,
) -> None:
    """Let parts fail under load, count what becomes of each request, and see whether the view is right afterwards."""
    console = Console()
    chosen = [(name,) for name in fault or FAULTS]
    chosen += random.Random(0).sample([pair for pair in itertools.combinations(FAULTS, 2) if _can(pair)], pairs)
    verdicts: list[Verdict] = []
    for name in shape or SHAPES:
        for _ in range(runs):
            verdicts += asyncio.run(_suffer_all(name, chosen, console))
    if write:
        before, _, rest = write.read_text().partition(BEGIN)
        write.write_text(f"{before}{BEGIN}\n\n{_table(verdicts)}\n\n{END}{rest.partition(END)[2]}")
    raise typer.Exit(any(verdict.fates.lost or verdict.wrong for verdict in verdicts))


def _can(pair: Sequence[str]) -> bool:
    """Not two faults of the same part: the second would find it dead."""
    return len({name.replace("both ", "").replace("one of two ", "").split()[0].rstrip("s'") for name in pair}) == 2


async def _suffer_all(shape: str, chosen: Iterable[tuple[str, ...]], console: Console) -> list[Verdict]:
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="picker-chaos-") as folder:
        async with rig(shape, Path(folder)) as made:
            for faults in chosen:
                if made.network is None and set(faults) & set(OF_THE_NETWORK):
                    continue
                verdict = await suffer(made, shape, faults)
                console.print(_row(verdict))
                for line in (*verdict.fates.lost[:5], *verdict.wrong):
                    console.print(f"    {line}", style="red")
                verdicts.append(verdict)
    return verdicts


def _row(verdict: Verdict) -> str:
    fates = verdict.fates
    refused = ", ".join(f"{count} {reason}" for reason, count in fates.refused.items()) or "0"
    cells = (
        verdict.shape,
        " + ".join(verdict.faults),
        fates.sent,
        fates.answered,
        refused,
        len(fates.lost),
        f"{verdict.recovered_s:.1f}",
        len(verdict.wrong),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _table(verdicts: Sequence[Verdict]) -> str:
    rule = "|---|---|---:|---:|---|---:|---:|---:|"
    return "\n".join([f"{PER_S:g} requests a second.", "", _HEAD, rule, *map(_row, verdicts)])


if __name__ == "__main__":
    typer.run(main)
