"""The command line: `python -m benchmarks.agent [--quick] [--json FILE]`."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from picker.agent.blocks import BlockTable
from picker.agent.events import Removed, Stored
from picker.agent.outbox import Outbox

_PROMPT_TOKENS = 4096


@dataclass(frozen=True)
class Row:
    """An engine with blocks of so many tokens. `x_set` is memory over that of a set of the engine's hashes alone."""

    block_tokens: int
    bytes_per_block: float
    bytes_per_1000_tokens: float
    x_set: float
    stored_per_s: float
    removed_per_s: float


def main(
    quick: Annotated[bool, typer.Option("--quick", help="A tenth of the blocks.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
) -> None:
    """Measure what following an engine's blocks takes: bytes for each, and how many a second."""
    rows = [_measure(size, 10_000 if quick else 100_000) for size in (1, 4, 16, 32, 64)]
    Console().print(_table(rows))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")


def _measure(size: int, blocks: int) -> Row:
    events = [event for prompt in range(blocks * size // _PROMPT_TOKENS) for event in _prompt(prompt, size)]
    count = sum(len(event.hashes) for event in events)
    plain = _bytes_of(lambda: {value for event in events for value in [int(str(each)) for each in event.hashes]})
    kept: list[object] = []
    used = _bytes_of(lambda: _follow(events, kept))
    table = BlockTable("m", max_nodes=2 * count)
    stored_s = _seconds(lambda: [table.apply(event) for event in events])
    removals = [Removed(event.hashes[::-1]) for event in reversed(events)]
    removed_s = _seconds(lambda: [table.apply(event) for event in removals])
    assert not table.published
    return Row(size, used / count, used / count / size * 1000, used / plain, count / stored_s, count / removed_s)


def _prompt(number: int, size: int) -> list[Stored]:
    """A prompt in two events, as when it comes in two chunks."""
    tokens = [(number * 7919 + position * 104_729) % 128_000 for position in range(_PROMPT_TOKENS)]
    hashes = [hash((number, end)) & (1 << 64) - 1 for end in range(_PROMPT_TOKENS // size)]
    half = len(hashes) // 2
    first = Stored(hashes[:half], None, tokens[: half * size], size)
    return [first, Stored(hashes[half:], hashes[half - 1], tokens[half * size :], size)]


def _follow(events: list[Stored], kept: list[object]) -> None:
    """Table and outbox, as an agent has them."""
    table, outbox = BlockTable("m", max_nodes=10**9), Outbox(1, 10**9)
    for event in events:
        # Hashes come out of MessagePack, each an object of its own.
        fresh = Stored([int(str(value)) for value in event.hashes], event.parent, event.tokens, event.block_size)
        outbox.store(table.apply(fresh).stored)
        outbox.draw()
    kept += [table, outbox]


def _bytes_of(make: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    result = make()
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return used


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _table(rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE)
    for heading in ("tokens a block", "bytes a block", "KB per 1,000 tokens", "x set", "stored/s", "removed/s"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            f"{row.block_tokens}",
            f"{row.bytes_per_block:.0f}",
            f"{row.bytes_per_1000_tokens / 1000:.1f}",
            f"{row.x_set:.1f}",
            f"{row.stored_per_s:,.0f}",
            f"{row.removed_per_s:,.0f}",
        )
    return table


if __name__ == "__main__":
    typer.run(main)
