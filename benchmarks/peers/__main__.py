"""The command line: `python -m benchmarks.peers [--quick] [--json FILE]`."""

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
from benchmarks.extproc.contenders import KB
from benchmarks.extproc.report import machine
from benchmarks.peers.fronts import ROUTERS, Router
from benchmarks.peers.measure import QUICK, STANDARD, Plan, measure, turns
from benchmarks.peers.report import Report, base_of, rows, tables
from benchmarks.peers.rig import running
from picker.simulation.process import DidNotStart
from picker.simulation.valkey import ValkeyFailed

_WIDTH = 150


def main(
    quick: Annotated[bool, typer.Option("--quick", help="One short round at lower rates.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    size: Annotated[list[int] | None, typer.Option(help="Only this body size, in KB (2, 32, 256); repeatable.")] = None,
    rate: Annotated[float | None, typer.Option(help="Of the open loop, requests a second.", min=1)] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds for each front, size and load.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Length of a round.", min=0.1)] = None,
) -> None:
    """Compare Envoy with Picker and other routers, in the same run before the same upstreams."""
    plan = QUICK if quick else STANDARD
    rates = {bytes_: rate or usual for bytes_, usual in plan.rates.items() if not size or bytes_ // KB in size}
    if not rates:
        raise typer.BadParameter("there are 2, 32 and 256", param_hint="--size")
    plan = replace(plan, rates=rates, rounds=rounds or plan.rounds, seconds=seconds or plan.seconds)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    console = Console()
    console.width = max(console.width, _WIDTH)
    routers = [router for router in ROUTERS if router.version]
    if missing := [router.label for router in ROUTERS if not router.version]:
        advice = "pip install 'envoy-picker[peers]'"
        console.print(f"Not installed, and left out: {', '.join(missing)} ({advice})", style="yellow")
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            found = runner.run(_run(routers, plan, console))
    except (DidNotStart, ValkeyFailed) as error:
        console.print(f"benchmark: {error}", style="red")
        raise typer.Exit(2) from None
    for table in tables(found):
        console.print(table)
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    if any(row.failures for row in found.rows):
        raise typer.Exit(1)


async def _run(routers: Sequence[Router], plan: Plan, console: Console) -> Report:
    console.print("Starting Valkey, upstreams, pickers, Envoy and the routers ...")
    async with running(routers) as fronts:
        with progress(console, len(list(turns(plan, fronts))), width=48) as advance:
            measurements = await measure(plan, fronts, advance)
    base = base_of([front.label for front in fronts])
    versions = {router.package: str(router.version) for router in routers}
    return Report(machine=machine() | versions, base=base, rows=rows(measurements, base), measurements=measurements)


if __name__ == "__main__":
    typer.run(main)
