"""`picker explain` and `picker tail`: why a request went where it went, and what is decided as it is decided."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from picker.commands.client import AsJson, Client, as_json, asks, fail
from picker.debug.v1 import debug_pb2 as pb

_STYLE = {"route": "green", "refuse": "bold red", "pass": "yellow"}


@asks
def explain(
    asked: Client,
    request_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A request's x-request-id, or a decision's id.")
    ] = None,
    request: Annotated[
        Path | None, typer.Option(help="Body of a request as JSON: what would be decided about it now?", dir_okay=False)
    ] = None,
    path: Annotated[str, typer.Option(help="The request's path.")] = "/v1/chat/completions",
    header: Annotated[list[str] | None, typer.Option(help="One of its headers, as name:value; repeatable.")] = None,
    policy: Annotated[str, typer.Option(help="Suppose this policy.")] = "",
    like: Annotated[str, typer.Option(help="Break ties as the decision with this id did.")] = "",
    json: AsJson = False,
) -> None:
    """Tell who was ruled out by what, what each of the rest would have cost, and how it ended.

    With --request nothing is placed: it tells what would be decided now.
    """
    if (request_id is None) == (request is None):
        fail("say which request: either ID or --request FILE")
    if request:
        found = [asked.ask("WhatIf", _question(asked, request, path, header or [], policy, like))]
    else:
        found = list(asked.ask("Explain", pb.ExplainRequest(id=request_id or "")).decisions)
    for decision in found:
        if json:
            typer.echo(as_json(decision))
        else:
            show(decision, Console(highlight=False, soft_wrap=True))


@asks
def tail(
    asked: Client,
    verdict: Annotated[str, typer.Option(help="Only these: route, refuse or pass.")] = "",
    reason: Annotated[str, typer.Option(help="Only those refused for this reason.")] = "",
    model: Annotated[str, typer.Option(help="Only those for this model.")] = "",
    tenant: Annotated[str, typer.Option(help="Only those of this tenant, as `picker tail` shows it.")] = "",
    worker: Annotated[str, typer.Option(help="Only those that went to this worker, by name or endpoint.")] = "",
    end: Annotated[str, typer.Option(help="Only those that ended so: answered, failed, cancelled, refused.")] = "",
    last: Annotated[int, typer.Option("--last", "-n", help="Begin with so many past ones.", min=0, max=1000)] = 10,
    follow: Annotated[bool, typer.Option(help="Go on with those to come.")] = True,
    json: AsJson = False,
) -> None:
    """Print decisions as their requests end, one line each."""
    wanted = pb.TailRequest(
        verdict=verdict, reason=reason, model=model, tenant=tenant, worker=worker, end=end, last=last,
        past_only=not follow,
    )  # fmt: skip
    console = Console(highlight=False, soft_wrap=True)
    for decision in asked.watch("Tail", wanted):
        if json:
            typer.echo(as_json(decision))
        else:
            console.print(_one_line(decision))


def show(decision: pb.Decision, console: Console) -> None:
    """The whole of a decision, for people."""
    console.print(_headline(decision))
    for line in _facts(decision):
        console.print(f"  {line}")
    if decision.is_detour:
        console.print("  a detour: the cheapest worker had no room, and this one costs little more")
    for rule in decision.ruled_out:
        names = ", ".join(rule.workers) + (", ..." if rule.count > len(rule.workers) else "")
        console.print(f"  ruled out by {rule.rule}: {rule.count} ({names})")
    if decision.candidates:
        console.print(_candidates(decision))
    if decision.outcome.end and decision.outcome.end != "open":
        console.print(f"  {_ending(decision)}")


def _question(asked: Client, file: Path, path: str, headers: list[str], policy: str, like: str) -> pb.WhatIfRequest:
    try:
        body = file.read_text()
        msgspec.json.decode(body)
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except (msgspec.DecodeError, UnicodeDecodeError):
        fail(f"{file}: is not JSON; it should hold the body of a request")
    pairs = dict(header.split(":", 1) for header in headers if ":" in header)
    told = {name.strip(): value.strip() for name, value in pairs.items()}
    question = pb.WhatIfRequest(request=pb.Request(body=body, path=path, headers=told), policy=policy)
    if like:
        earlier = asked.ask("Explain", pb.ExplainRequest(id=like)).decisions[-1]
        question.sequence, question.ties = earlier.sequence, earlier.ties
    return question


def _headline(decision: pb.Decision) -> Text:
    verdict = Text(decision.verdict, _STYLE.get(decision.verdict, ""))
    where = f" to {decision.candidates[0].worker} at {decision.endpoints[0]}" if decision.endpoints else ""
    why = f" {decision.status} {decision.reason}".replace(" 0 ", " ") if decision.reason else ""
    return Text.assemble((decision.request_id or decision.id, "bold"), " ", verdict, where, why)


def _facts(decision: pb.Decision) -> Iterator[str]:
    stages = decision.stages
    yield f"at {time.strftime('%F %T', time.gmtime(decision.at))} UTC by picker {decision.process}, event {decision.id}"
    names = ("model", "adapter", "tenant", "objective", "profile", "policy", "trace_id")
    yield ", ".join(f"{name} {value}" for name in names if (value := getattr(decision, name)))
    yield f"prompt of {decision.prompt_tokens} tokens, known by {decision.rung or 'nothing'}; " + (
        f"{decision.hit_tokens} cached there, {decision.best_hit_tokens} on the best of {decision.eligible} workers"
        if decision.candidates
        else f"{decision.expected_output_tokens} tokens expected"
    )
    spent = {
        "receiving": stages.receive_s, "reading": stages.read_s, "prompt": stages.prompt_s, "queue": stages.queue_s,
        "deciding": stages.decide_s, "answering": stages.reply_s,
    }  # fmt: skip
    yield "; ".join(f"{name} {1000 * seconds:.2f} ms" for name, seconds in spent.items() if seconds)


def _candidates(decision: pb.Decision) -> Table:
    names = sorted({name for each in decision.candidates for name in each.terms})
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("  worker")
    for name in ("cached", *names, "cost"):
        table.add_column(name, justify="right")
    for each in decision.candidates:
        terms = (f"{each.terms[name]:.4f}" for name in names)
        style = "bold" if each.endpoint == decision.endpoints[0] else ""
        table.add_row(f"  {each.worker}", str(each.hit_tokens), *terms, f"{each.cost:.4f} s", style=style)
    return table


def _ending(decision: pb.Decision) -> str:
    outcome = decision.outcome
    parts = [f"ended: {outcome.end}"]
    if outcome.status:
        parts.append(f"status {outcome.status}")
    if outcome.served:
        other = "" if outcome.served in decision.endpoints[:1] else ", not the first choice"
        parts.append(f"served by {outcome.served}{other}")
    if outcome.attempts > 1:
        parts.append(f"{outcome.attempts} attempts")
    if outcome.HasField("first_byte_s"):
        parts.append(f"first byte after {outcome.first_byte_s:.3f} s")
    if outcome.HasField("duration_s"):
        parts.append(f"over after {outcome.duration_s:.3f} s")
    if outcome.HasField("cached_tokens"):
        parts.append(f"{outcome.cached_tokens} tokens were cached")
    return ", ".join(parts)


def _one_line(decision: pb.Decision) -> Text:
    outcome = decision.outcome
    where = decision.candidates[0].worker if decision.candidates else decision.reason
    hit = f"{decision.hit_tokens}/{decision.prompt_tokens}"
    seconds = f"{outcome.duration_s:.3f}s" if outcome.HasField("duration_s") else ""
    return Text.assemble(
        (time.strftime("%T ", time.gmtime(decision.at)), "dim"),
        (f"{decision.verdict:7}", _STYLE.get(decision.verdict, "")),
        f"{where:20} {decision.model:20} {hit:>15} {outcome.end:10} {outcome.status or '':4} {seconds:>9}  ",
        (decision.request_id or decision.id, "dim"),
    )
