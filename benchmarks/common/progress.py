"""How far a run is, on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def progress(console: Console, total: int, width: int) -> Iterator[Callable[[str], None]]:
    """Gives what is to be told of each measurement before it; `width` is that of the longest.

    Drawn between measurements only: drawing must not take part in them.
    """
    columns = (TextColumn(f"{{task.description:{width}}}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(what: str) -> None:
            bar.update(task, description=what, advance=1, refresh=True)

        yield advance
        bar.update(task, advance=1, refresh=True)
