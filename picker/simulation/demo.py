"""`picker demo`: the same conversations through the same Envoy to the same workers, round-robin and then picked."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import httpx
import msgspec
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from picker.simulation.signals import run_until_signal
from picker.simulation.stack import MODEL, Plan, Stack
from picker.simulation.trace import TraceRequest, load

_TIMEOUT_S = 60.0


class DemoFailed(RuntimeError):
    """The demo cannot do what it is asked for. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. `requests`: how many of the trace's to replay; None for all."""

    workers: int = 4
    once: bool = False
    json: Path | None = None
    requests: int | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as the client saw it. `ttft_s` is None where it failed."""

    worker: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float | None = None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of the traffic came to. Times in seconds."""

    requests: int
    failures: int
    prompt_tokens: int
    hit_tokens: int
    hit_ratio: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    requests_per_worker: dict[str, int]


async def run(options: Options) -> int:
    """Starts everything, replays, prints, and stays up unless told not to. Returns the exit code.

    That is 0 after the table, and 128 + n after signal n, as shells have it.
    Raises DemoFailed, DidNotStart, ValkeyFailed.
    """
    if options.json:
        _check_writable(options.json)
    console = Console()
    received = await run_until_signal(_run(options, console), lambda number: _announce_stop(console, number))
    return 128 + received if received else 0


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir():
        raise DemoFailed(f"--json {path}: there is no folder {path.parent}; make it, or name another")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise DemoFailed(f"--json {path}: may not be written; name another file")


def _announce_stop(console: Console, number: signal.Signals) -> None:
    # After a hang-up there is no terminal, and each write to it would fail.
    console.quiet = number == signal.SIGHUP
    console.print("Stopping ...")


async def _run(options: Options, console: Console) -> None:
    trace = load()[: options.requests]
    console.print(f"Starting Valkey, {options.workers} simulated workers, an agent, a picker and Envoy ...")
    async with Stack(Plan(workers=options.workers)) as stack:
        figures = await _compare(stack, trace, console)
        console.print(_table(figures))
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
        if any(one.failures for one in figures.values()):
            raise DemoFailed("some requests failed")
        if not options.once:
            write_turns(stack.folder)
            console.print(_invitation(stack), highlight=False, soft_wrap=True)
            await asyncio.Event().wait()


async def _compare(stack: Stack, trace: Sequence[TraceRequest], console: Console) -> dict[str, Figures]:
    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    figures: dict[str, Figures] = {}
    with Progress(*columns, console=console) as progress:
        for seed, (name, url) in enumerate([("round-robin", stack.round_robin_url), ("picker", stack.url)]):
            bar = progress.add_task(name, total=len(trace))
            await _empty_caches(stack)
            figures[name] = summarise(await replay(url, trace, seed, lambda bar=bar: progress.advance(bar)))  # type: ignore[misc]
    return figures


async def _empty_caches(stack: Stack) -> None:
    async with httpx.AsyncClient() as client:
        for endpoint in stack.endpoints:
            (await client.post(f"http://{endpoint}/reset_prefix_cache")).raise_for_status()


async def replay(url: str, trace: Sequence[TraceRequest], seed: int, tick: Callable[[], None]) -> list[Exchange]:
    """Sends the requests at their times, whether or not earlier ones have ended."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S, limits=limits) as client:
        start = time.monotonic()

        async def one(request: TraceRequest) -> Exchange:
            await asyncio.sleep(start + request.at_s - time.monotonic())
            exchange = await ask(client, request.messages_for(seed), request.max_tokens)
            tick()
            return exchange

        waiting: list[Awaitable[Exchange]] = [one(request) for request in trace]
        return list(await asyncio.gather(*waiting))


async def ask(client: httpx.AsyncClient, messages: Sequence[dict[str, str]], max_tokens: int) -> Exchange:
    """One streamed chat request, timed to its first token."""
    body = {
        "model": MODEL, "messages": messages, "max_tokens": max_tokens,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    started, ttft, last = time.monotonic(), None, b""
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                return Exchange()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                ttft = ttft or time.monotonic() - started
                last = line.removeprefix("data: ").encode()
            usage = msgspec.json.decode(last, type=_LastChunk).usage
    except (httpx.HTTPError, msgspec.DecodeError):
        return Exchange()
    cached = usage.prompt_tokens_details.cached_tokens
    return Exchange(response.headers.get("x-worker", "?"), usage.prompt_tokens, cached, ttft)


class _Details(msgspec.Struct):
    cached_tokens: int


class _Usage(msgspec.Struct):
    prompt_tokens: int
    prompt_tokens_details: _Details


class _LastChunk(msgspec.Struct):
    usage: _Usage


def summarise(exchanges: Sequence[Exchange]) -> Figures:
    """The figures of a run; times are those of requests that were answered."""
    times = [exchange.ttft_s for exchange in exchanges if exchange.ttft_s is not None] or [float("nan")]
    prompt, hit = sum(e.prompt_tokens for e in exchanges), sum(e.cached_tokens for e in exchanges)
    return Figures(
        requests=len(exchanges),
        failures=sum(exchange.ttft_s is None for exchange in exchanges),
        prompt_tokens=prompt,
        hit_tokens=hit,
        hit_ratio=hit / max(1, prompt),
        ttft_mean_s=fmean(times),
        ttft_p50_s=float(np.percentile(times, 50)),
        ttft_p95_s=float(np.percentile(times, 95)),
        requests_per_worker=dict(sorted(Counter(e.worker for e in exchanges if e.worker).items())),
    )


def _table(figures: dict[str, Figures]) -> Table:
    before, after = figures["round-robin"], figures["picker"]
    caption = "Each run has words of its own, so that nothing of the first is cached in the second."
    table = Table(title="The same traffic, twice", caption=caption)
    for heading in ("", "round-robin", "picker", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_row("requests", str(before.requests), str(after.requests))
    table.add_row("failures", str(before.failures), str(after.failures))
    hits = after.hit_ratio / max(1e-9, before.hit_ratio)
    table.add_row("prompt tokens from cache", f"{before.hit_ratio:.1%}", f"{after.hit_ratio:.1%}", f"{hits:.1f} x")
    for name in ("mean", "p50", "p95"):
        left, right = (getattr(one, f"ttft_{name}_s") for one in (before, after))
        table.add_row(f"TTFT {name}", f"{left:.3f} s", f"{right:.3f} s", f"{left / right:.1f} x")
    for worker in sorted(before.requests_per_worker | after.requests_per_worker):
        counts = (one.requests_per_worker.get(worker, 0) for one in (before, after))
        table.add_row(f"requests on {worker}", *map(str, counts))
    return table


_RULES = """You answer for a public library. Be brief and friendly, and say so when you do not know. Books are lent
for four weeks, films and games for one. A loan can be extended twice unless somebody waits for it. The house is open
from ten to seven, on Saturdays until two, and closed on Sundays. Children under twelve need a parent's consent to join.
Whoever brings something back late pays twenty cents a day for each item, and never more than the item costs."""


def write_turns(folder: Path) -> None:
    """Two requests to paste, the second the first's next turn: `turn-1.json`, `turn-2.json`.

    Their prefix is longer than an index block: what is shorter is in nobody's credit.
    """
    first = [{"role": "system", "content": _RULES}, {"role": "user", "content": "How long may I keep a film?"}]
    answer = {"role": "assistant", "content": "A week, and you may extend that twice."}
    second = [*first, answer, {"role": "user", "content": "And if I am late?"}]
    for number, messages in enumerate((first, second), start=1):
        body = {"model": MODEL, "messages": messages, "max_tokens": 8}
        (folder / f"turn-{number}.json").write_bytes(msgspec.json.format(msgspec.json.encode(body), indent=2))


def _invitation(stack: Stack) -> str:
    chat = f"curl -si {stack.url}/v1/chat/completions -H 'content-type: application/json' -d @{stack.folder}"
    return f"""
Everything stays up until Ctrl-C. Two turns of a conversation; both go to the worker that has its prefix:

  {chat}/turn-1.json | grep x-worker
  {chat}/turn-2.json | grep x-worker

And behind it:

  curl -s http://{stack.metrics_address}/metrics | grep ^picker_
  grpcurl -plaintext {stack.picker_address} list
  curl -s http://{stack.admin_address}/clusters | grep ^workers
"""
