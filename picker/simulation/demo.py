"""`picker demo`: the same conversations through the same Envoy to the same workers, round-robin and then picked."""

from __future__ import annotations

import asyncio
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

from picker.simulation.stack import MODEL, Plan, Stack
from picker.simulation.trace import TraceRequest, load

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    workers: int = 4
    once: bool = False
    json: Path | None = None


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


async def run(options: Options) -> None:
    """Starts everything, replays, prints, and stays up unless told not to. Raises DidNotStart."""
    console = Console()
    trace = load()
    console.print(f"Starting Valkey, {options.workers} simulated workers, an agent, a picker and Envoy ...")
    async with Stack(Plan(workers=options.workers)) as stack:
        figures = await _compare(stack, trace, console)
        console.print(_table(figures))
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
        if any(one.failures for one in figures.values()):
            raise SystemExit("picker: some requests failed")
        if not options.once:
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
    table = Table(title="The same traffic, twice")
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


def _invitation(stack: Stack) -> str:
    chat = '{"model": "tiny-llama", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}'
    return f"""
Everything stays up until Ctrl-C. Try:

  curl -si {stack.url}/v1/chat/completions -H 'content-type: application/json' -d '{chat}'
  curl -s http://{stack.metrics_address}/metrics | grep ^picker_
  grpcurl -plaintext {stack.picker_address} list
  curl -s http://{stack.admin_address}/clusters | grep ^workers
"""
