"""Measurements to rows, and rows to tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from statistics import median

import msgspec
from rich import box
from rich.table import Table

from benchmarks.extproc.contenders import KB
from benchmarks.peers.fronts import ALONE, ROUTERS
from benchmarks.peers.measure import Measurement

_COLUMNS = ("requests", "failed", "per s", "x", "p50 ms", "p99 ms", "x", "CPU ms", "x", "picker", "client", "upstream")
_BESIDE = ("client", "upstream")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A front under a load: medians over the rounds, sums of requests and failures.

    `cpu_ms` is of each process, `own_cpu_ms` of all but client and upstream. `x_...` are ratios to the row `base`.
    """

    front: str
    load: str
    body_bytes: int
    requests: int
    failures: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: dict[str, float]
    own_cpu_ms: float
    x_per_s: float = 1.0
    x_p99: float = 1.0
    x_cpu: float = 1.0


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that goes into the JSON file. `base`: whom the ratios are to."""

    machine: dict[str, str]
    base: str
    rows: list[Row]
    measurements: list[Measurement]


def base_of(fronts: Sequence[str]) -> str:
    """The first router that is there, else Envoy alone."""
    return next((router.label for router in ROUTERS if router.label in fronts), ALONE)


def rows(measurements: Iterable[Measurement], base: str) -> list[Row]:
    """By size, load and front, in the order of the first round."""
    found: dict[tuple[int, str, str], list[Measurement]] = {}
    for one in measurements:
        found.setdefault((one.body_bytes, one.load, one.front), []).append(one)
    plain = {key: _row(rounds) for key, rounds in found.items()}
    ordered = sorted(plain, key=lambda key: key[:2])
    return [_compared(plain[key], plain[*key[:2], base]) for key in ordered]


def tables(found: Report) -> Iterator[Table]:
    """One table for each size and load."""
    for (size, load), group in groupby(found.rows, lambda row: (row.body_bytes, row.load)):
        title = f"{size // KB} KB bodies, {load} (x: to {found.base})"
        table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
        table.add_column("front", no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for row in group:
            table.add_row(*_cells(row), style="red" if row.failures else None)
        yield table


def _row(rounds: Sequence[Measurement]) -> Row:
    first = rounds[0]
    cpu = {name: median(one.cpu_ms[name] for one in rounds) for name in first.cpu_ms}
    return Row(
        front=first.front,
        load=first.load,
        body_bytes=first.body_bytes,
        requests=sum(one.requests for one in rounds),
        failures=sum(one.failures for one in rounds),
        per_s=median(one.per_s for one in rounds),
        p50_ms=median(one.p50_ms for one in rounds),
        p99_ms=median(one.p99_ms for one in rounds),
        cpu_ms=cpu,
        own_cpu_ms=sum(ms for name, ms in cpu.items() if name not in _BESIDE),
    )


def _compared(row: Row, base: Row) -> Row:
    return msgspec.structs.replace(
        row,
        x_per_s=row.per_s / base.per_s,
        x_p99=row.p99_ms / base.p99_ms,
        # A kernel that keeps no statistics of its scheduler says 0.
        x_cpu=row.own_cpu_ms / base.own_cpu_ms if base.own_cpu_ms else 0.0,
    )


def _cells(row: Row) -> list[str]:
    return [
        row.front,
        str(row.requests),
        str(row.failures),
        f"{row.per_s:,.0f}",
        f"{row.x_per_s:.2f}",
        f"{row.p50_ms:.2f}",
        f"{row.p99_ms:.2f}",
        f"{row.x_p99:.2f}",
        f"{row.own_cpu_ms:.3f}",
        f"{row.x_cpu:.2f}",
        *(f"{row.cpu_ms[name]:.3f}" if name in row.cpu_ms else "" for name in ("picker", *_BESIDE)),
    ]
