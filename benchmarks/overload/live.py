"""The command line: `python -m benchmarks.overload.live [--seconds 120] [--json FILE] [--doc PAGE]`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.common.doc import put
from benchmarks.overload.drive import CLASSES, WORKERS, Report, run

GROWTH = 0.05
"""Of the picker's memory from the first to the last third: more is not flat."""
LATE_S = 0.05
"""A refusal that comes later than this after it could be known is late."""


def main(
    seconds: Annotated[float, typer.Option(help="Of overload; before it the capacity is measured.", min=12.0)] = 120.0,
    json: Annotated[Path | None, typer.Option(help="Write all answers to this file.", dir_okay=False)] = None,
    doc: Annotated[Path | None, typer.Option(help="Put the table into this page, between its marks.")] = None,
) -> None:
    """Offer twice what simulated workers can do, through a real Envoy, and look at what becomes of it."""
    report = asyncio.run(run(seconds))
    rows = list(lines(report))
    table = Table(box=box.SIMPLE, show_header=False)
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    if json:
        json.write_bytes(msgspec.json.encode(report))
    if doc:
        put(doc, "benchmarks.overload.live", "".join(f"| {name} | {text} |\n" for name, text in (*_HEAD, *rows)))
    found = problems(report)
    for problem in found:
        console.print(problem, style="red")
    raise typer.Exit(1 if found else 0)


_HEAD = (("", ""), ("---", "---"))


def problems(report: Report) -> list[str]:
    """What should not be, but for how late refusals were."""
    statuses = Counter(answer.status for answer in report.answers)
    found = [
        f"{count} requests were answered {status}" for status, count in statuses.items() if status not in (200, 429)
    ]
    if report.routed + report.refused != len(report.answers):
        found.append(f"{len(report.answers)} requests, but the picker counts {report.routed + report.refused:g}")
    if report.refused != statuses[429] or report.routed != statuses[200]:
        found.append(f"the picker has placed {report.routed:g} and refused {report.refused:g}: not what clients saw")
    before, after = report.memory_mb
    if after > before * (1 + GROWTH):
        found.append(f"the picker has grown from {before:.1f} to {after:.1f} MB")
    return found + [f"{name} is {value:g} at the end" for name, value in report.left_over.items() if value]


def lines(report: Report) -> Iterator[tuple[str, str]]:
    """The table."""
    answers = report.answers
    statuses = Counter(answer.status for answer in answers)
    yield "capacity", f"{report.capacity:.1f} requests/s of {WORKERS} workers"
    yield "offered", f"{report.offered:.1f} requests/s for {report.seconds:g} s: {len(answers)}"
    yield "answered", ", ".join(f"{count} with {status}" for status, count in sorted(statuses.items()))
    yield "of them by the picker's count", f"{report.routed:g} placed, {report.refused:g} refused"
    for each in CLASSES:
        own = [answer.status for answer in answers if answer.kind == each["name"]]
        yield f"served of `{each['name']}`", f"{own.count(200) / max(1, len(own)):.1%} of {len(own)}"
    for reason, count in Counter(answer.reason for answer in answers if answer.reason).most_common():
        late = np.array([answer.late_s(report.prefill_s) for answer in answers if answer.reason == reason])
        spread = ", ".join(f"{np.percentile(late, share) * 1000:.0f}" for share in (50, 90, 99, 100))
        yield f"`{reason}`: {count}", f"{spread} ms after it could be known; {np.mean(late <= LATE_S):.1%} within 50 ms"
    yield "picker's memory, first and last third", " and ".join(f"{each:.1f} MB" for each in report.memory_mb)
    yield "queue and books at the end", ", ".join(f"{name} {value:g}" for name, value in report.left_over.items())


if __name__ == "__main__":
    typer.run(main)
