"""`picker workers`, `top`, `cordon`, `uncordon`, `drain`: who is there and how busy, and who shall get nothing more."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from picker.commands.client import AsJson, Client, as_json, asks
from picker.debug.v1 import debug_pb2 as pb


class Sort(enum.StrEnum):
    """What workers are ordered by; all but the name with the most first."""

    NAME = "name"
    INFLIGHT = "in-flight"
    WAITING = "waiting"
    KV = "kv"
    OWED = "owed"


_ORDER: dict[Sort, Callable[[pb.Worker], Any]] = {
    Sort.NAME: lambda each: each.worker,
    Sort.INFLIGHT: lambda each: -each.in_flight,
    Sort.WAITING: lambda each: -each.waiting,
    Sort.KV: lambda each: -each.kv_used,
    Sort.OWED: lambda each: -each.prefill_owed_s,
}
By = Annotated[Sort, typer.Option("--sort", help="Order.")]
Only = Annotated[str, typer.Option("--filter", help="Only workers with this in name, endpoint, model, label or mark.")]
Note = Annotated[str, typer.Option(help="Why, for those who wonder later.")]
Named = Annotated[str, typer.Argument(metavar="WORKER", help="Its name, or its endpoint.")]


@asks
def workers(
    asked: Client,
    sort: By = Sort.NAME,
    only: Only = "",
    json: AsJson = False,
) -> None:
    """List the workers that a picker knows, and what it knows of them."""
    fleet = asked.ask("GetFleet", pb.GetFleetRequest())
    if json:
        for each in _chosen(fleet, sort, only):
            typer.echo(as_json(each))
    else:
        Console(highlight=False, soft_wrap=True).print(_table(fleet, sort, only))


@asks
def top(
    asked: Client,
    sort: By = Sort.INFLIGHT,
    only: Only = "",
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.2, max=60)] = 1.0,
    looks: Annotated[int | None, typer.Option(help="End after so many.", min=1)] = None,
    json: AsJson = False,
) -> None:
    """Watch the workers and the verdicts. Ctrl-C ends it."""
    before: pb.Fleet | None = None
    with Live(console=Console(), auto_refresh=False, screen=False, transient=False) as live:
        for number, fleet in enumerate(asked.watch("WatchFleet", pb.WatchFleetRequest(every_s=every)), 1):
            if json:
                typer.echo(as_json(fleet))
            else:
                live.update(Group(_summary(fleet, before), _table(fleet, sort, only)), refresh=True)
            before = fleet
            if number == looks:
                break


@asks
def cordon(
    asked: Client,
    worker: Named,
    note: Note = "",
    json: AsJson = False,
) -> None:
    """Send nothing more to a worker, by any picker of the pool. What it has goes on."""
    _told(asked.ask("Cordon", pb.CordonRequest(worker=worker, note=note)), json)


@asks
def uncordon(
    asked: Client,
    worker: Named,
    json: AsJson = False,
) -> None:
    """Take a cordon back."""
    _told(asked.ask("Uncordon", pb.CordonRequest(worker=worker)), json)


@asks
def drain(
    asked: Client,
    worker: Named,
    note: Note = "",
    json: AsJson = False,
) -> None:
    """Cordon a worker and wait until it has no request left."""
    for progress in asked.watch("Drain", pb.DrainRequest(worker=worker, note=note)):
        busy = f"{progress.in_flight} requests in flight, {progress.running} at the worker"
        typer.echo(as_json(progress) if json else f"{progress.worker}: {'drained' if progress.is_done else busy}")


def _told(answer: pb.CordonResponse, json: bool) -> None:
    if json:
        typer.echo(as_json(answer))
        return
    typer.echo(f"cordoned: {', '.join(answer.cordoned) or 'nobody'}")
    if not answer.is_shared:
        typer.echo("Redis is away: the other pickers will be told when it is back", err=True)


def _chosen(fleet: pb.Fleet, sort: Sort, only: str) -> list[pb.Worker]:
    return sorted((each for each in fleet.workers if only in _text(each)), key=_ORDER[sort])


def _text(each: pb.Worker) -> str:
    labels = (f"{label}={value}" for label, value in each.labels.items())
    return " ".join((each.worker, each.endpoint, *each.models, *labels, *_marks(each)))


def _marks(each: pb.Worker) -> list[str]:
    """What is out of the ordinary."""
    found = {
        each.state: each.state != "ready",
        "cordoned": each.is_cordoned,
        "stale": not each.is_fresh,
        "breaker": each.is_breaker_open,
        "prefixes-dirty": each.publishes_kv and not each.is_index_trusted,
    }
    return [mark for mark, is_so in found.items() if is_so]


def _table(fleet: pb.Fleet, sort: Sort, only: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in ("worker", "endpoint", "model"):
        table.add_column(name, overflow="ellipsis", no_wrap=True)
    for name in ("in flight", "running", "waiting", "KV", "owed s", "hits", "slow", "age s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for each in _chosen(fleet, sort, only):
        hits = f"{each.engine_hit_share:.0%}" if each.HasField("engine_hit_share") else ""
        table.add_row(
            each.worker, each.endpoint, each.models[0] if each.models else "", str(each.in_flight), str(each.running),
            str(each.waiting), f"{each.kv_used:.0%}", f"{each.prefill_owed_s:.2f}", hits, f"{each.slowness:.2f}",
            f"{each.beat_age_s:.1f}", Text(" ".join(_marks(each)), "yellow"),
        )  # fmt: skip
    return table


def _summary(fleet: pb.Fleet, before: pb.Fleet | None) -> Text:
    seconds = fleet.at - before.at if before else 0.0
    earlier = {(each.verdict, each.reason): each.count for each in before.verdicts} if before else {}
    rates = [
        f"{each.verdict}{' ' + each.reason if each.reason else ''} {(each.count - earlier.get(key, 0)) / seconds:.1f}/s"
        for each in fleet.verdicts
        if seconds and each.count > earlier.get(key := (each.verdict, each.reason), 0)
    ]
    queues = [f"queue {each.name}: {each.requests}, oldest {each.oldest_s:.1f} s" for each in fleet.queues]
    head = f"{time.strftime('%T')} pool {fleet.pool}, picker {fleet.process} (+{fleet.other_pickers})"
    told = "  ".join((head, f"{fleet.streams} streams", *rates, *queues))
    return Text.assemble(told, (f"\ndegraded: {', '.join(fleet.degraded)}" if fleet.degraded else "", "bold yellow"))
