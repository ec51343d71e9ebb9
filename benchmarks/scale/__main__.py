"""The command line: `python -m benchmarks.scale [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.scale.measure import Row, measure
from benchmarks.scale.writer import EVENT_BLOCKS
from benchmarks.view.pool import Plan, write
from picker.simulation.valkey import ValkeyServer

_RATES = (0.0, 1000.0, 2000.0, 4000.0, 8000.0)
_COLUMNS = ("applied/s", "CPU", "lag p50 ms", "p99", "picks/s beside", "lag p50 ms", "p99", "memory MB", "dirty")


def main(
    quick: Annotated[bool, typer.Option("--quick", help="100 workers, two rates, short.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    workers: Annotated[int, typer.Option(help="In the pool.", min=2)] = 1000,
    blocks: Annotated[int, typer.Option(help="Index blocks that each holds.", min=20)] = 5000,
    rate: Annotated[list[float] | None, typer.Option(help="Events a second of all workers; repeatable.")] = None,
) -> None:
    """Measure one picker before a large fleet: what its events cost, how late they are, how many picks go beside."""
    plan = Plan(100, 500) if quick else Plan(workers, blocks)
    rates = rate or list(_RATES[:2] if quick else _RATES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(_run(plan, rates, 1.0 if quick else 5.0))
    Console(width=130).print(_table(plan, rows))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


async def _run(plan: Plan, rates: list[float], seconds: float) -> list[Row]:
    async with ValkeyServer() as server:
        with Redis.from_url(server.url) as redis:
            write(plan, redis)
        return await measure(server.url, plan, rates, seconds)


def _table(plan: Plan, rows: Sequence[Row]) -> Table:
    title = f"{plan.workers:,} workers x {plan.blocks:,} blocks, one load a second each, {EVENT_BLOCKS} blocks an event"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("events/s", justify="right")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    for row in rows:
        lags = f"{row.lag_p50_ms:.0f}", f"{row.lag_p99_ms:.0f}"
        busy = f"{row.picks_per_s:,.0f}", f"{row.busy_lag_p50_ms:.0f}", f"{row.busy_lag_p99_ms:.0f}"
        first = f"{row.events_per_s:,.0f}", f"{row.applied_per_s:,.0f}", f"{row.quiet_cpu:.2f}"
        table.add_row(*first, *lags, *busy, f"{row.memory_mb:.0f}", str(row.dirty))
    return table


if __name__ == "__main__":
    typer.run(main)
