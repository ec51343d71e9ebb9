"""The command line: `python -m benchmarks.events [--quick] [--json FILE]`."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json as jsonlib
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from picker.config import Config
from picker.events.recorder import Recorder
from picker.events.settings import Events
from picker.events.sink import Sink
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.view import View
from picker.observing import Observer
from picker.picking import Picker
from picker.prompts.reader import PromptReader, Rung
from picker.redisview.records import WorkerRecord, WorkerState
from picker.replaying import deciding
from picker.scheduling.policies import expected_delay
from picker.telemetry.decisions import DecisionMetrics
from picker.telemetry.metrics import Metrics
from picker.telemetry.trace_settings import Traces
from picker.telemetry.tracing import tracing
from picker.telemetry.workers import lines, take

WORKERS = (64, 1000)
_BODY = jsonlib.dumps({"model": "model", "messages": [{"role": "user", "content": "word " * 400}]}).encode()
_HEADERS = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json"}
_NOWHERE = "http://127.0.0.1:1"


@dataclass(frozen=True)
class Contender:
    """What is on."""

    name: str
    ring: bool = True
    metrics: bool = True
    file: bool = False
    replayable: bool = False
    traces: bool = False


DEFAULT = Contender("ring and metrics (default)")
CONTENDERS = (
    Contender("nothing", ring=False, metrics=False),
    Contender("ring", metrics=False),
    DEFAULT,
    Contender("and a file of decisions", file=True),
    Contender("and what they saw (replayable)", file=True, replayable=True),
    Contender("and a trace of each tenth", traces=True),
)


@dataclass(frozen=True)
class Row:
    """CPU time of the process for one request, microseconds; `more_us` than with nothing on."""

    workers: int
    name: str
    request_us: float
    more_us: float


@dataclass(frozen=True)
class Scrape:
    """CPU time of one scrape, milliseconds, and its size."""

    workers: int
    cpu_ms: float
    bytes: int


def _fleet(workers: int) -> View:
    view = View(capacity=workers)
    for number in range(workers):
        endpoint = f"10.0.{number // 250}.{number % 250 + 1}:8000"
        facts = {"worker": endpoint, "epoch": number, "endpoint": endpoint, "models": ("model",)}
        record = WorkerRecord(state=WorkerState.READY, **facts)
        view.index.trust(view.admit(record, now=0.0), True)
    return view


class Uncounted(Metrics):
    """Metrics that count no picks."""

    def __init__(self) -> None:
        super().__init__()
        self.pick_seconds.observe = lambda value: None  # type: ignore[method-assign]

    def routed(self, model: str, prompt_tokens: int, hit_tokens: int, rung: Rung) -> None:  # noqa: D102
        pass


class Subject:
    """A picker with some of it on, and its own fleet."""

    def __init__(self, workers: int, contender: Contender, path: str, policy: str = expected_delay.NAME):
        file = path if contender.file else None
        events = Events(ring=10_000 if contender.ring else 0, file=file, replayable=contender.replayable)
        config = Config(events=events, policy=policy)
        self.view = _fleet(workers)
        self.metrics = Metrics() if contender.metrics else Uncounted()
        recorder = Recorder(events, "benchmark")
        if contender.metrics:
            DecisionMetrics(self.metrics.registry, recorder)
        self.sink = Sink(events, recorder, deciding(config), None) if file else None
        self.tracing = tracing(Traces(endpoint=_NOWHERE, sample=0.1), recorder) if contender.traces else None
        observer = Observer(recorder, self.view, contender.replayable)
        self.picker = Picker(config, self.view, PromptReader({}), self.metrics, lambda: False, observer)
        self._number = 0

    async def requests(self, count: int) -> float:
        """CPU seconds of so many, with what is written of them."""
        started = time.process_time()
        for _ in range(count):
            self._number += 1
            answer = await self.picker.pick(Pick({**_HEADERS, "x-request-id": str(self._number)}, _BODY))
            assert isinstance(answer, Picked), answer
            self.picker.first_byte(answer.placement, 200, answer.endpoints[0])
            self.picker.release(answer.placement)
        if self.sink:
            await self.sink.flush()
        if self.tracing:
            await self.tracing.send(float("inf"))
        return time.process_time() - started

    def close(self) -> None:
        """Lets go of threads."""
        self.picker.close()


async def _measure(workers: int, requests: int, rounds: int) -> list[Row]:
    """In turns, so that what else the machine does falls on all alike."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as exits:
        subjects = []
        for number, contender in enumerate(CONTENDERS):
            subjects.append(Subject(workers, contender, f"{folder}/{number}.jsonl"))
            exits.callback(subjects[-1].close)
        found: list[list[float]] = [[] for _ in CONTENDERS]
        gc.freeze()
        for _ in range(rounds):
            for subject, times in zip(subjects, found, strict=True):
                times.append(1e6 * await subject.requests(requests) / requests)
    more = [median(each - plain for each, plain in zip(times, found[0], strict=True)) for times in found]
    return [Row(workers, c.name, median(t), m) for c, t, m in zip(CONTENDERS, found, more, strict=True)]


async def _scrape(workers: int) -> Scrape:
    """Of a picker that has placed requests on all of them."""
    subject = Subject(workers, DEFAULT, "", policy="round-robin")
    await subject.requests(workers)
    columns = take(subject.view, time.monotonic(), workers)
    subject.metrics.add_lines(lambda: lines(columns))
    times = []
    for _ in range(20):
        await subject.requests(10)
        started = time.thread_time()
        body, _ = subject.metrics.exposition("")
        times.append(1000 * (time.thread_time() - started))
    subject.close()
    return Scrape(workers, median(times), len(body))


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all figures to this file.", dir_okay=False)] = None,
) -> None:
    """Measure what it costs to keep, count, write and trace each decision."""
    console = Console()
    # Short rounds, and many: of the differences within each the median stays when the machine does something else.
    requests, rounds = (64, 10) if quick else (64, 200)
    rows = [row for workers in WORKERS for row in asyncio.run(_measure(workers, requests, rounds))]
    scrapes = [asyncio.run(_scrape(workers)) for workers in WORKERS]
    console.print(_table(rows))
    for scrape in scrapes:
        size = f"{scrape.bytes / 1024:.0f} KiB"
        console.print(f"a scrape with {scrape.workers:,} workers: {scrape.cpu_ms:.1f} ms of CPU, {size}")
    if json:
        told = {"requests": rows, "scrapes": scrapes}
        json.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")


def _table(rows: list[Row]) -> Table:
    title = "CPU of one request in the picker, without its transport; 2 KB chat"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    for column in ("workers", "what is on", "us", "more us", "ratio"):
        table.add_column(column, justify="left" if "on" in column else "right", no_wrap=True)
    plain = {row.workers: row.request_us for row in rows if row.name == CONTENDERS[0].name}
    for row in rows:
        ratio = f"{1 + row.more_us / plain[row.workers]:.2f}"
        table.add_row(f"{row.workers:,}", row.name, f"{row.request_us:.0f}", f"{row.more_us:+.1f}", ratio)
    return table


if __name__ == "__main__":
    typer.run(main)
