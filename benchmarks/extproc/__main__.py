"""The command line: `python -m benchmarks.extproc [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import typer
from rich.console import Console

from benchmarks.common.load import precise_loop
from benchmarks.common.progress import progress
from benchmarks.extproc.contenders import CONTENDERS, KB, MODES, Contender
from benchmarks.extproc.measure import QUICK, STANDARD, Plan, idle_ms_per_s, measure
from benchmarks.extproc.report import Report, report, tables
from benchmarks.extproc.rig import running
from picker.simulation.process import DidNotStart
from picker.simulation.valkey import ValkeyFailed

_IDLE_S = 2.0
_WIDTH = 120


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter rounds at lower rates.")] = False,
    modes: Annotated[bool, typer.Option("--modes", help="Compare the picker's body modes instead.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    size: Annotated[list[int] | None, typer.Option(help="Only this body size, in KB (2, 32, 256); repeatable.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests a second, at every size.", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds for each contender and size.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of a round.", min=0.1)] = None,
) -> None:
    """Measure what the picker adds to a request through a real Envoy, in latency at the client and in CPU."""
    plan = QUICK if quick else STANDARD
    rates = {bytes_: rate or usual for bytes_, usual in plan.rates.items() if not size or bytes_ // KB in size}
    if not rates:
        raise typer.BadParameter("there are 2, 32 and 256", param_hint="--size")
    plan = replace(plan, rates=rates, rounds=rounds or plan.rounds, seconds=seconds or plan.seconds)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    console = Console()
    console.width = max(console.width, _WIDTH)
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            found = runner.run(_run(MODES if modes else CONTENDERS, plan, console))
    except (DidNotStart, ValkeyFailed) as error:
        console.print(f"benchmark: {error}", style="red")
        raise typer.Exit(2) from None
    _show(found, console)
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    if any(row.failures for row in found.rows):
        raise typer.Exit(1)


async def _run(contenders: Sequence[Contender], plan: Plan, console: Console) -> Report:
    console.print("Starting Valkey, upstreams, the contenders and Envoy ...")
    async with running(contenders) as rig:
        idle = await idle_ms_per_s(rig, min(_IDLE_S, plan.seconds))
        with progress(console, plan.steps(contenders), width=28) as advance:
            measurements = await measure(rig, plan, advance)
    return report(plan, measurements, idle)


def _show(found: Report, console: Console) -> None:
    for table in tables(found.rows):
        console.print(table)
    idle = ", ".join(f"{label} {ms:.0f}" for label, ms in found.idle_ms_per_s.items())
    console.print(f"CPU without any requests, in ms a second (it is part of the figures above): {idle}")


if __name__ == "__main__":
    typer.run(main)
