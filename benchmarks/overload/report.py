"""The runs of each case together: means over seeds, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich import box
from rich.table import Table

from benchmarks.overload.cases import Row

COLUMNS = ("experiment", "load", "admission", "in time", "refused", "goodput tok/s", "cached", "in time, by kind")


def table(rows: Sequence[Row]) -> Table:
    """For a terminal."""
    found = Table(box=box.SIMPLE)
    for name in COLUMNS:
        found.add_column(name)
    for cells in _cells(rows):
        found.add_row(*cells)
    return found


def markdown(rows: Sequence[Row]) -> str:
    """For a page."""
    lines = (COLUMNS, ("---",) * len(COLUMNS), *_cells(rows))
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    ordered = sorted(rows, key=lambda row: (row.case.experiment, row.case.load, row.case.how, row.case.mix))
    for case, group in groupby(ordered, key=lambda row: row.case):
        runs = list(group)
        how = f"{case.how} ({case.mix})" if case.mix == "others alone" else case.how
        yield (
            case.experiment,
            f"{case.load:g}",
            how,
            _share([row.in_time for row in runs]),
            _share([row.refused for row in runs]),
            f"{_mean([row.goodput for row in runs]):,.0f}",
            f"{_mean([row.hit for row in runs]):.0%}",
            ", ".join(f"{kind} {_share([row.by_kind[kind] for row in runs])}" for kind in runs[0].by_kind),
        )


def _share(values: Sequence[float]) -> str:
    """The mean, and the least and the most where they are not the same."""
    mean, least, most = (f"{value:.1%}" for value in (_mean(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least} to {most})"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
