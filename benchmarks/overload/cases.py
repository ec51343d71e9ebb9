"""The runs: who asks for what, and with which admission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal

from picker.admission.settings import AdmissionSettings, ClassSettings, Room
from picker.simulation.discrete.cluster import Cluster, simulate
from picker.simulation.discrete.outcome import FAILED, Request
from picker.simulation.discrete.slo import Slo, parse
from picker.simulation.discrete.synthetic import BEHAVIOURS, Users
from picker.simulation.discrete.traces import Slice, read, replay
from picker.simulation.discrete.workload import Ask, Source
from picker.simulation.profiles import PROFILES

HOLDING = 2.3
"""Replay speed at which about 90 % are in time when all are placed at once: see the row of 1.0."""
TRACE_SLO = parse("ttft=2s+1.5x,tpot=100ms")
AGENT_SLO = parse("ttft=2s,tpot=50ms")
TPOT_S = 0.05
TENANTS = 8
Mix = Literal["", "classes", "tenants", "others alone"]
How = Literal["at once", "default settings", "admission"]


@dataclass(frozen=True)
class Case:
    """One run. `load` is a multiple of `HOLDING`, or a number of users."""

    experiment: str
    load: float
    how: How
    mix: Mix = ""


CASES = (
    *(Case("rates", load, how) for load in (0.8, 1.0, 1.2, 1.5, 2.0) for how in ("at once", "admission")),
    Case("rates", 0.8, "default settings"),
    *(Case("classes", 1.5, how, "classes") for how in ("at once", "admission")),
    *(Case("tenants", 1.5, how, "tenants") for how in ("at once", "admission")),
    Case("tenants", 1.5, "admission", "others alone"),
    *(Case("agents", users, how) for users in (40, 50, 200) for how in ("at once", "admission")),
    Case("agents", 40, "default settings"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What came of a run. Shares of the requests; `by_kind` in time. `goodput` in tokens a second."""

    case: Case
    in_time: float
    refused: float
    goodput: float
    hit: float
    by_kind: dict[str, float]


def run(case: Case, trace: Path, requests: int) -> Row:
    """Runs it. Raises BadTrace."""
    slo, cluster, source = _agents(case) if case.experiment == "agents" else _replayed(case, trace, requests)
    outcome = simulate(cluster, source, seed=1)
    figures = outcome.figures(slo)
    refused = _share(outcome.measured())
    return Row(case, figures.attained, refused, figures.goodput, figures.hit_ratio, figures.attained_by_kind)


def _share(requests: Sequence[Request]) -> float:
    return sum(request.ttft_s == FAILED for request in requests) / max(1, len(requests))


def _agents(case: Case) -> tuple[Slo, Cluster, Source]:
    cluster = Cluster(PROFILES["32b"], workers=8, admission=_admission(case, 2.0, 0.0))
    return AGENT_SLO, cluster, Users(BEHAVIOURS["agents"], int(case.load), seed=1, warm_s=80.0, until_s=200.0)


def _replayed(case: Case, trace: Path, requests: int) -> tuple[Slo, Cluster, Source]:
    marked = _marked(read(trace), case.mix)
    alone = case.mix == "others alone"
    asks = [ask for ask in marked if ask.kind == "others"] if alone else marked
    limit = int(requests * (len(asks) / len(marked)))
    cluster = Cluster(PROFILES["70b"], admission=_admission(case, 2.0, 1.5))
    return TRACE_SLO, cluster, replay(asks, HOLDING * case.load, Slice(0.5, 1.0, limit))


def _marked(asks: Sequence[Ask], mix: Mix) -> list[Ask]:
    rng = Random(1)
    if not mix:
        return list(asks)
    if mix == "classes":
        return [replace(ask, kind="interactive" if rng.random() < 0.2 else "batch") for ask in asks]
    return [
        replace(ask, kind="heavy", tenant="heavy")
        if rng.random() < 0.6
        else replace(ask, kind="others", tenant=f"tenant {rng.randrange(TENANTS)}")
        for ask in asks
    ]


def _admission(case: Case, ttft_s: float, ttft_prefills: float) -> AdmissionSettings | None:
    if case.how == "at once":
        return None
    if case.how == "default settings":
        return AdmissionSettings()
    names = (("interactive", 100, 0.0, 1.0), ("default", 0, 0.1, 0.9), ("batch", -100, 0.05, 0.5))
    classes = tuple(
        ClassSettings(name=name, priority=priority, share=share, fill=fill, ttft_s=ttft_s, ttft_prefills=ttft_prefills)
        for name, priority, share, fill in names
    )
    return AdmissionSettings(classes=classes, room=Room(tpot_s=TPOT_S))
