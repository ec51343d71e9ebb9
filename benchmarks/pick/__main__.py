"""The command line: `python -m benchmarks.pick [--quick] [--json FILE]`."""

from __future__ import annotations

import cProfile
import gc
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.pick.stages import STAGES, Timers, timed
from benchmarks.pick.subject import Subject

SIZES_KB = (2, 32, 256)
_WARM_UP = 100
_ROUNDS = 6


class Stage(msgspec.Struct, frozen=True):
    """Of one request: microseconds without the stages inside it, and how often it is entered."""

    name: str
    us: float
    calls: float


class Found(msgspec.Struct, frozen=True):
    """At one size of body. `whole_us` is measured without timers; `timers_us` is what these add to it."""

    body_bytes: int
    workers: int
    whole_us: float
    timers_us: float
    stages: list[Stage]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer requests.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
    size: Annotated[list[int] | None, typer.Option(help="Only this body size, in KB; repeatable.", min=1)] = None,
    workers: Annotated[int, typer.Option(help="In the fleet.", min=1)] = 4,
    functions: Annotated[int, typer.Option(help="Show so many functions by their own time instead.", min=0)] = 0,
) -> None:
    """Measure where the CPU of a pick goes, from Envoy's bytes to the answers', stage by stage, without sockets."""
    console = Console()
    requests = 50 if quick else 500
    found = []
    for each in size or SIZES_KB:
        if functions:
            uvloop.run(_profile(workers, 1024 * each, requests, functions))
            continue
        found.append(uvloop.run(_measure(workers, 1024 * each, requests)))
        console.print(_table(found[-1]))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")


async def _measure(workers: int, size: int, requests: int) -> Found:
    """With and without timers in turns, so that what else the machine does falls on both."""
    timers = Timers()
    plain, whole = list[float](), list[float]()
    spent: dict[str, list[int]] = {stage: [] for stage in STAGES}
    calls = dict.fromkeys(STAGES, 0)
    for _ in range(_ROUNDS):
        plain += await _run(workers, size, requests)
        with timed(timers):
            whole += await _run(workers, size, requests, timers.take, lambda: _note(timers, spent, calls))
    stages = [Stage(name, median(times) / 1000, calls[name] / len(times)) for name, times in spent.items()]
    return Found(size, workers, median(plain), median(whole) - median(plain), stages)


async def _run(
    workers: int,
    size: int,
    requests: int,
    begin: Callable[[], object] = lambda: None,
    note: Callable[[], object] = lambda: None,
) -> list[float]:
    """Microseconds of each request; `begin` is called before the first and `note` after each."""
    subject = Subject(workers, size)
    try:
        await subject.warm_up(_WARM_UP)
        gc.collect()
        gc.freeze()
        begin()
        times = []
        for number in range(_WARM_UP, _WARM_UP + requests):
            pieces = subject.prepare(number)
            started = time.perf_counter_ns()
            subject.answer(pieces)
            times.append((time.perf_counter_ns() - started) / 1000)
            note()
        return times
    finally:
        subject.close()


def _note(timers: Timers, spent: dict[str, list[int]], calls: dict[str, int]) -> None:
    took, entered = timers.take()
    for stage, times in spent.items():
        times.append(took.get(stage, 0))
        calls[stage] += entered.get(stage, 0)


async def _profile(workers: int, size: int, requests: int, functions: int) -> None:
    """Python's profiler counts calls well, and makes small functions look dear: for finding, not for measuring."""
    profile = cProfile.Profile()
    profile.enable()
    await _run(workers, size, requests)
    profile.disable()
    pstats.Stats(profile).sort_stats("tottime").print_stats(functions)


def _table(found: Found) -> Table:
    title = f"{found.body_bytes // 1024} KB, {found.workers} workers: {found.whole_us:.0f} us without timers"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("stage", no_wrap=True)
    for column in ("us", "share", "calls"):
        table.add_column(column, justify="right", no_wrap=True)
    for stage in found.stages:
        table.add_row(stage.name, f"{stage.us:.1f}", f"{stage.us / found.whole_us:.0%}", f"{stage.calls:.1f}")
    table.add_row(
        "the timers themselves, in the above", f"{found.timers_us:.1f}", f"{found.timers_us / found.whole_us:.0%}", ""
    )
    return table


if __name__ == "__main__":
    typer.run(main)
