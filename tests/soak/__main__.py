"""A picker under mixed traffic and churn for a while: `python -m tests.soak --help`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import httpx
import typer
from redis.asyncio import Redis

from benchmarks.common.doc import put
from picker.simulation.stack import Plan, Stack
from tests.integration.traffic import until
from tests.soak.judge import NOT_JUDGED, Line, judged, table
from tests.soak.probe import Sample, books, sample
from tests.soak.traffic import STAYING, Soak, soak

_SMALL = {
    # Caches that are full soon, so that what grows after that is a leak.
    "limits": {"prompt_states_bytes": 2 << 20, "prompt_tokens_bytes": 2 << 20},
    "events": {"ring": 500, "ring_bytes": 1 << 20},
}
_LEAVING = 2


def main(
    minutes: Annotated[float, typer.Option(help="How long.")] = 120.0,
    per_s: Annotated[float, typer.Option(help="Requests a second.")] = 10.0,
    replace_every_s: Annotated[float, typer.Option(help="One worker is replaced by another so often.")] = 10.0,
    write: Annotated[Path | None, typer.Option(help="Put the table into this page.", dir_okay=False)] = None,
) -> None:
    """Mixed traffic while workers, adapters, models and tenants come and go; what is held must stay flat."""
    samples, told, rest = asyncio.run(_run(minutes * 60, per_s, replace_every_s))
    lines = judged(samples)
    page = _page(lines, told, rest, minutes)
    typer.echo(page)
    if write:
        put(write, "tests.soak", f"{page}\n")
    grown = [line.name for line in lines if line.name != NOT_JUDGED and not line.is_flat]
    open_books = [name for name, value in rest.items() if value]
    for problem in (*grown, *open_books, *told.steady.lost[:5]):
        typer.echo(f"not well: {problem}", err=True)
    raise typer.Exit(bool(grown or open_books or told.steady.lost))


async def _run(seconds: float, per_s: float, every_s: float) -> tuple[list[Sample], Soak, dict[str, float]]:
    samples: list[Sample] = []
    plan = Plan(workers=STAYING + _LEAVING, worker=("--speed", "20", "--num-blocks", "2000"), picker=_SMALL)
    async with Stack(plan) as stack:
        redis = Redis.from_url(stack.valkey.url)
        async with soak(stack, per_s, every_s) as told:
            over_at = time.monotonic() + seconds
            while time.monotonic() < over_at:
                await asyncio.sleep(seconds / 60)
                # One that a busy machine does not answer in time is left out.
                with contextlib.suppress(httpx.TransportError):
                    samples.append(await sample(stack, redis))
        await redis.aclose()

        async def is_quiet() -> bool:
            return not any((await books(stack)).values())

        with contextlib.suppress(TimeoutError):
            await until(is_quiet, within_s=60)
        return samples, told, await books(stack)


def _page(lines: Sequence[Line], told: Soak, rest: dict[str, float], minutes: float) -> str:
    steady, passing = told.steady, told.passing
    refused, broken = sum(passing.refused.values()), told.broken + steady.broken + passing.broken
    head = (
        f"{minutes:g} minutes. {steady.sent} requests for a model that stays: {steady.answered} answered, "
        f"{sum(steady.refused.values())} refused, {len(steady.lost)} lost. {passing.sent} for models and adapters that "
        f"may be gone: {passing.answered} answered, {refused} refused, {len(passing.lost)} failed. "
        f"{broken} answers broke off with their worker. {told.left} clients left early. "
        f"{told.replaced} workers were replaced. "
        f"At the end: {', '.join(f'{name} {value:g}' for name, value in rest.items())}."
    )
    return f"{head}\n\n{table(lines)}"


if __name__ == "__main__":
    typer.run(main)
