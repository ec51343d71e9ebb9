"""`picker simulate`: what a policy does with a fleet and a load that do not exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from picker.commands.options import taking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from picker.simulation.discrete.cluster import Cluster
    from picker.simulation.discrete.compare import Answer, Question
    from picker.simulation.discrete.outcome import Outcome
    from picker.simulation.discrete.slo import Slo
    from picker.simulation.discrete.workloads import Workload

simulate = typer.Typer(no_args_is_help=True, help="Simulate a fleet: what a policy does, how many users it holds.")

Json = Annotated[Path | None, typer.Option(help="Write the figures to this file as well.", dir_okay=False)]
Plot = Annotated[Path | None, typer.Option(help="Draw to this file: .png, .svg or .html.", dir_okay=False)]
Policies = Annotated[str, typer.Option("--policy", help="Policies by name, with commas between.")]
Seeds = Annotated[int, typer.Option(help="Run with so many seeds.", min=1, max=100)]
Level = Annotated[str, typer.Option(help="Per cent of requests that must be in the objective; several with commas.")]
Hint = Annotated[float, typer.Option("--from", help="Where to begin to search.", min=0.01)]
_WHOLE = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class _Case:
    """A fleet, its requests, and what is asked of it, as options."""

    trace: Annotated[
        Path | None, typer.Option(help="Requests from a file: Mooncake's JSONL, Azure's CSV, or ours.", dir_okay=False)
    ] = None
    workload: Annotated[str, typer.Option(help="Requests that are made up; `workloads` lists them.")] = "assistants"
    profile: Annotated[str, typer.Option(help="Model and GPU: 70b, 32b, 8b, demo, or a name in --profiles.")] = "32b"
    profiles: Annotated[
        Path | None, typer.Option(help="YAML or JSON file with profiles of your own.", dir_okay=False)
    ] = None
    workers: Annotated[int, typer.Option(help="Workers.", min=1, max=4096)] = 8
    slo: Annotated[str, typer.Option(help="As ttft=1.5s,tpot=50ms; in ttft=2s+1.5x x is the cold prefill.")] = (
        "ttft=1.5s,tpot=50ms"
    )
    pickers: Annotated[int, typer.Option(help="Picker processes.", min=1, max=64)] = 1
    share: Annotated[
        float, typer.Option(help="Seconds between what pickers tell one another; 0: nothing.", min=0.0)
    ] = 0.08
    metrics: Annotated[float, typer.Option(help="Seconds between published loads of a worker.", min=0.01)] = 1.0
    event_delay: Annotated[float, typer.Option(help="Seconds that a KV event takes to a picker.", min=0.0)] = 0.1
    fault: Annotated[list[str] | None, typer.Option(help="As worker=3,at=60,for=30[,slow=4]; repeatable.")] = None
    assume_defaults: Annotated[
        bool, typer.Option("--assume-defaults", help="Pickers assume a worker of the default speed.")
    ] = False
    part: Annotated[tuple[float, float], typer.Option(help="Part of a trace, as 0.5 1 for its second half.")] = _WHOLE
    requests: Annotated[int | None, typer.Option(help="At most so many requests of a trace.", min=1)] = None
    seconds: Annotated[float, typer.Option(help="Simulated time of a made-up workload; 40 % warm up.", min=1.0)] = 260.0


@simulate.command()
@taking(_Case)
def run(
    case: _Case,
    load: Annotated[float, typer.Option(help="Users, the speed of a trace, or requests a second.", min=0.01)],
    policy: Policies = "round-robin,expected-delay",
    seed: Annotated[int, typer.Option(help="Of everything that is random.")] = 1,
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Run one load with one or more policies: latency, throughput, hits, the share within the objective."""
    with _explained():
        setup = _setup(case)
        _check_plot(plot)
        from picker.simulation.discrete.report import figures_table

        console = Console()
        outcomes = _outcomes(setup, _policies(policy), load, seed, console)
        figures = {name: outcome.figures(setup.slo) for name, outcome in outcomes.items()}
        fleet, what = f"{case.workers} x {case.profile}", f"{setup.workload.name}, {load:g} {setup.workload.unit}"
        title = f"{what}, {fleet}, {setup.slo}, seed {seed}"
        console.print(figures_table(title, figures))
        _write(json, {"question": title, "runs": figures})
        if plot:
            from picker.simulation.discrete.plots import draw_runs, save

            save(draw_runs(outcomes, title), plot)


def _search(name: str, text: str, *, policies: str, levels: str, number_of_seeds: int) -> None:
    """A command that looks for what holds. There are two, which differ in what they do unless told otherwise."""

    @simulate.command(name, help=text)
    @taking(_Case)
    def search(
        case: _Case,
        policy: Policies = policies,
        level: Level = levels,
        seeds: Seeds = number_of_seeds,
        start: Hint = 20.0,
        json: Json = None,
        plot: Plot = None,
    ) -> None:
        with _explained():
            _answer(_setup(case), _policies(policy), level, seeds, start, json, plot)


_search(
    "users",
    "Find the most users, or the highest speed of a trace, that a policy holds within the objective.",
    policies="expected-delay",
    levels="95",
    number_of_seeds=2,
)
_search(
    "compare",
    "The same for several policies, with ratios to the first and confidence intervals; two processes.",
    policies="round-robin,least-request,llm-d,llm-d-tuned,dynamo-8,lmetric,expected-delay",
    levels="90,95,99",
    number_of_seeds=3,
)


@simulate.command("policies")
def list_policies() -> None:
    """List the policies, those of installed packages too."""
    from picker.scheduling.policies import UnknownPolicy, find, names

    for name in names():
        try:
            typer.echo(f"{name:18} {find(name).summary}")
        except UnknownPolicy as error:
            typer.echo(f"{name:18} cannot be used: {error}")


@simulate.command("workloads")
def list_workloads() -> None:
    """List the made-up workloads."""
    from picker.simulation.discrete.synthetic import BEHAVIOURS
    from picker.simulation.discrete.workloads import BURSTS

    for name, behaviour in BEHAVIOURS.items():
        typer.echo(f"{name:15} {behaviour.summary}; {behaviour.think_s:g} s between answer and next request")
    typer.echo(f"{BURSTS:15} requests of 3k tokens in waves of 20 s; the load is their mean rate")


@dataclass(frozen=True, slots=True)
class _Setup:
    """What the options come to."""

    cluster: Cluster
    workload: Workload
    slo: Slo
    profile: str


def _setup(case: _Case) -> _Setup:
    from picker.scheduling.model import WorkerModel
    from picker.simulation.discrete import settings, slo, workloads
    from picker.simulation.discrete.cluster import Cluster
    from picker.simulation.discrete.traces import Slice

    cluster = Cluster(
        profile=settings.profile(case.profile, case.profiles),
        workers=case.workers,
        model=WorkerModel() if case.assume_defaults else None,
        pickers=case.pickers,
        share_s=case.share or None,
        metrics_s=case.metrics,
        event_delay_s=case.event_delay,
        faults=tuple(settings.fault(text, case.workers) for text in case.fault or ()),
    )
    if case.trace:
        workload = workloads.of_trace(case.trace, Slice(*case.part, case.requests))
    else:
        workload = workloads.named(case.workload, 0.4 * case.seconds, case.seconds)
    return _Setup(cluster, workload, slo.parse(case.slo), case.profile)


def _outcomes(setup: _Setup, policies: Sequence[str], load: float, seed: int, console: Console) -> dict[str, Outcome]:
    from picker.simulation.discrete.cluster import simulate as simulate_cluster

    outcomes = {}
    with _progress(console) as progress:
        for name in policies:
            source = setup.workload.build(load, seed)
            tick = partial(progress.advance, progress.add_task(name, total=source.expected))
            outcomes[name] = simulate_cluster(replace(setup.cluster, policy=name), source, seed, tick=tick)
    return outcomes


def _answer(
    setup: _Setup, policies: Sequence[str], level: str, seeds: int, start: float, json: Path | None, plot: Path | None
) -> None:
    from picker.simulation.discrete.compare import Question
    from picker.simulation.discrete.report import answers_table
    from picker.simulation.discrete.settings import levels

    _check_plot(plot)
    question = Question(setup.cluster, setup.workload, setup.slo, levels(level), tuple(range(1, seeds + 1)), start)
    console = Console()
    found = _ask(question, policies, console)
    workers = setup.cluster.workers
    title = f"{setup.workload.name}, {workers} x {setup.profile}, {setup.slo}, {seeds} seeds"
    console.print(answers_table(title, setup.workload.unit, found))
    _write(json, {"question": title, "unit": setup.workload.unit, "answers": found})
    if plot:
        from picker.simulation.discrete.plots import draw_answers, save

        save(draw_answers(found, setup.workload.unit, title), plot)


def _ask(question: Question, policies: Sequence[str], console: Console) -> list[Answer]:
    from picker.simulation.discrete.compare import answers

    found = {}
    with _progress(console) as progress:
        bar = progress.add_task("policies", total=len(policies))
        for answer in answers(question, policies):
            found[answer.policy] = answer
            progress.advance(bar)
    return [found[policy] for policy in policies]


def _policies(text: str) -> list[str]:
    from picker.scheduling.policies import find

    return [find(name.strip()).name for name in text.split(",")]


def _progress(console: Console) -> Progress:
    columns: Iterable[Any] = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console)


def _check_plot(plot: Path | None) -> None:
    """Before the work and not after it."""
    if plot is None:
        return
    try:
        from picker.simulation.discrete.plots import check
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{error.name} is not installed; pictures come with: pip install 'envoy-picker[simulate]'"
        ) from None
    check(plot)


def _write(path: Path | None, content: object) -> None:
    if path:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"picker: {error}", err=True)
        raise typer.Exit(2) from None
