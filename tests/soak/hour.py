"""A picker at 500 requests a second for an hour: `python -m tests.soak.hour --help`.

The load is light, so that two cores are enough: the upstreams answer at once, and one client sends when it is due. What
comes and goes, and what breaks, is `python -m tests.soak`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Annotated

import structlog
import typer

from benchmarks.common.conversations import Conversations
from benchmarks.common.doc import put
from benchmarks.common.fleet import Activity
from benchmarks.common.load import Client, chat, poisson, precise_loop
from benchmarks.extproc.contenders import KB, MODEL, Contender, Responder
from benchmarks.extproc.rig import Rig, Site, metrics_of, running
from tests.integration.traffic import until
from tests.soak.judge import Line, judged, table
from tests.soak.probe import BOOKS, Sample, use_of

_SLICE_S = 5.0
_SAMPLES = 60
_REST_S = 30.0
_SMALL = {
    # Full soon, so that what grows after that is a leak.
    "events": {"ring": 2000, "ring_bytes": 4 << 20},
}


@dataclass
class Told:
    """What came of it. `cpu_share`: of a core, the picker's. `rest`: what is in the books once all is quiet."""

    sent: int = 0
    failed: int = 0
    placed: int = 0
    p99s_ms: list[float] = field(default_factory=list)
    cpu_share: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    rest: dict[str, float] = field(default_factory=dict)


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    per_s: Annotated[float, typer.Option(help="Requests a second, of 2 KB.")] = 500.0,
    transport: Annotated[str, typer.Option(help="The picker's: http2 or grpcio.")] = "http2",
    write: Annotated[Path | None, typer.Option(help="Put the table into this page.", dir_okay=False)] = None,
) -> None:
    """A steady rate for long; memory must stay flat, no stream may leak, every booking must be released."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        told = runner.run(_run(60 * minutes, per_s, transport))
    lines = judged(told.samples)
    page = _page(lines, told, minutes, per_s, transport)
    typer.echo(page)
    if write:
        put(write, "tests.soak.hour", f"{page}\n")
    problems = [line.name for line in lines if not line.is_flat] + [name for name, value in told.rest.items() if value]
    if told.failed or told.placed != told.sent:
        problems.append(f"{told.failed} failed, {told.sent - told.placed} not placed")
    for problem in problems:
        typer.echo(f"not well: {problem}", err=True)
    raise typer.Exit(bool(problems))


async def _run(seconds: float, per_s: float, transport: str) -> Told:
    contender = Contender("picker", Responder.PICKER, picker={"transport": transport, **_SMALL})
    told = Told()
    async with running((contender,), Activity()) as rig:
        [site] = rig.sites
        placed, cpu, started = await site.placed() or 0, site.cpu_s(), time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            sending = tasks.create_task(_send(site, seconds, per_s, told))
            while not sending.done():
                await asyncio.wait([sending], timeout=seconds / _SAMPLES)
                told.samples.append(await _sample(rig, site))
        told.cpu_share = (site.cpu_s() - cpu) / (time.monotonic() - started)
        told.placed = (await site.placed() or 0) - placed
        told.rest = await _rest(site)
    return told


async def _send(site: Site, seconds: float, per_s: float, told: Told) -> None:
    """In slices, so that what is remembered of each request is soon forgotten."""
    conversations, client, rng = Conversations(2 * KB, MODEL), Client(site.listen), Random(0)
    over_at = time.monotonic() + seconds
    while time.monotonic() < over_at:
        first = told.sent
        arrivals = poisson(per_s, min(_SLICE_S, seconds), rng)
        exchanges = await client.run(arrivals, lambda number, first=first: chat(conversations.body(first + number)))  # type: ignore[misc]
        told.sent += len(exchanges)
        told.failed += sum(exchange.status != 200 for exchange in exchanges)
        latencies = sorted(exchange.latency_s for exchange in exchanges)
        told.p99s_ms.append(1000 * latencies[int(0.99 * len(latencies))])
    client.close()


async def _sample(rig: Rig, site: Site) -> Sample:
    assert site.responder is not None
    found: Sample = {}
    for name, pid in (("picker", site.responder.pid), ("Envoy", rig.envoy.pid)):
        use = use_of(pid)
        found |= {f"{name}: memory, MB": use.memory_mb, f"{name}: descriptors": use.descriptors}
    metrics = await metrics_of(site.metrics)
    return found | {"picker: metric series": float(len(metrics)), "picker: streams": metrics["picker_streams"]}


async def _rest(site: Site) -> dict[str, float]:
    async def is_quiet() -> bool:
        metrics = await metrics_of(site.metrics)
        return not any(metrics[name] for name in BOOKS)

    with contextlib.suppress(TimeoutError):
        await until(is_quiet, within_s=_REST_S)
    metrics = await metrics_of(site.metrics)
    return {name: metrics[name] for name in BOOKS}


def _page(lines: Sequence[Line], told: Told, minutes: float, per_s: float, transport: str) -> str:
    p99s = sorted(told.p99s_ms)
    head = (
        f"{minutes:g} minutes at {per_s:g} requests/s, `transport: {transport}`: {told.sent} sent, "
        f"{told.failed} failed, {told.placed} placed. The picker took {told.cpu_share:.2f} of a core. "
        f"p99 of five seconds: median {p99s[len(p99s) // 2]:.1f} ms, worst {p99s[-1]:.1f} ms. At the end: "
        f"{', '.join(f'{name} {value:g}' for name, value in told.rest.items())}."
    )
    return f"{head}\n\n{table(lines)}"


if __name__ == "__main__":
    typer.run(main)
