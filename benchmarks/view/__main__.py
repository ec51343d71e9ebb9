"""The command line: `python -m benchmarks.view [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from redis import Redis
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.view.measure import LookUp, Measurement, Task, Times
from benchmarks.view.pool import Plan, write
from picker.simulation.valkey import ValkeyServer

_POOLS = (Plan(1000, 5000), Plan(64, 50_000))
_SMALL = (Plan(200, 2000), Plan(16, 20_000))
_WIDTH = 110


class Row(msgspec.Struct, frozen=True):
    """A pool, what it takes in Redis, and what was measured."""

    redis_bytes: int
    measured: Measurement


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Smaller pools, fewer repeats.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
) -> None:
    """Measure the mirrored view: cold start, memory, look-ups against queries to Redis, events, lag."""
    console = Console()
    console.width = max(console.width, _WIDTH)
    rows = [asyncio.run(_row(plan, quick)) for plan in (_SMALL if quick else _POOLS)]
    for table in (_pools(rows), _lookups(rows), _choices(rows)):
        console.print(table)
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


async def _row(plan: Plan, quick: bool) -> Row:
    async with ValkeyServer() as server:
        with Redis.from_url(server.url) as redis:
            redis_bytes = write(plan, redis)
        task = Task(server.url, plan, lookups=2000 if quick else 5000, events=2000 if quick else 8000,
                    lags=30 if quick else 200)  # fmt: skip
        command = [sys.executable, "-m", "benchmarks.view.measure"]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        answer, _ = await process.communicate(msgspec.json.encode(task))
    return Row(redis_bytes, msgspec.json.decode(answer, type=Measurement))


def _name(plan: Plan) -> str:
    return f"{plan.workers:,} workers x {plan.blocks:,} blocks"


def _pools(rows: list[Row]) -> Table:
    table = Table("", *(_name(row.measured.plan) for row in rows), box=box.SIMPLE, title="pool")
    for column in table.columns[1:]:
        column.justify = "right"
    figures = [row.measured for row in rows]
    lines = {
        "cold start: picked by load, s": [f"{each.by_load_s:.2f}" for each in figures],
        "cold start: all prefixes, s": [f"{each.by_prefix_s:.1f}" for each in figures],
        "longest hold of the loop meanwhile, CPU ms": [f"{each.held_ms:.1f}" for each in figures],
        "memory of the picker, MB": [f"{each.picker_bytes / 1e6:,.0f}" for each in figures],
        "memory in Redis, MB": [f"{row.redis_bytes / 1e6:,.1f}" for row in rows],
        "events applied, blocks/s": [f"{each.applied_per_s:,.0f}" for each in figures],
        "engine event to mirror, ms p50 / p99": [f"{each.lag_ms.p50:.0f} / {each.lag_ms.p99:.0f}" for each in figures],
    }
    for name, values in lines.items():
        table.add_row(name, *values)
    return table


def _lookups(rows: list[Row]) -> Table:
    columns = ("pool", "prompt of 2,048 blocks", "deepest", "MGET, us p50 / p99", "script", "mirror", "x MGET")
    table = Table(*columns, box=box.SIMPLE, title="look-up")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        for each in row.measured.lookups:
            table.add_row(_name(row.measured.plan), *_cells(each))
    return table


def _cells(each: LookUp) -> list[str]:
    ratio = each.mirror.p50 / each.mget.p50
    return [each.prompt, f"{each.depth:,}", _us(each.mget), _us(each.script), _us(each.mirror), f"{ratio:.4f}"]


def _us(times: Times) -> str:
    return f"{times.p50:,.0f} / {times.p99:,.0f}"


def _choices(rows: list[Row]) -> Table:
    columns = ("pool", "index", "bytes for a block of a worker", "look-up, us", "store, us a block")
    table = Table(*columns, box=box.SIMPLE, title="index")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        for each in row.measured.choices:
            table.add_row(_name(row.measured.plan), each.kind, f"{each.bytes_each:.0f}", f"{each.lookup_us:.0f}",
                          f"{each.store_us_each:.2f}")  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
