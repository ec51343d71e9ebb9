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
How = Literal["at once", "default settings", "objective", "objective and tpot_s"]
"""No admission; admission with no setting changed; with an objective for first tokens; with room.tpot_s as well."""
AT_ONCE: How = "at once"
FULL: How = "objective and tpot_s"


@dataclass(frozen=True)
class Case:
    """One experiment. `load` is a multiple of `HOLDING`, or a number of users."""

    experiment: str
    load: float
    how: How
    mix: Mix = ""


CASES = (
    *(Case("rates", load, how) for load in (0.8, 1.0, 1.2, 1.5, 2.0) for how in (AT_ONCE, FULL)),
    *(Case("rates", 0.8, how) for how in ("default settings", "objective")),
    *(Case("rates", load, "objective") for load in (1.2, 1.5, 2.0)),
    *(Case("classes", load, how, "classes") for load in (1.5, 2.0) for how in (AT_ONCE, FULL)),
    *(Case("tenants", load, how, "tenants") for load in (1.5, 2.0) for how in (AT_ONCE, FULL)),
    *(Case("tenants", load, FULL, "others alone") for load in (1.5, 2.0)),
    *(Case("agents", users, how) for users in (40, 50, 200) for how in (AT_ONCE, FULL)),
    Case("agents", 40, "default settings"),
    *(Case("agents", users, "objective") for users in (40, 200)),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What came of a run. Shares of the requests; `by_kind` in time. `goodput` in tokens a second."""

    case: Case
    seed: int
    in_time: float
    refused: float
    goodput: float
    hit: float
    by_kind: dict[str, float]


def run(case: Case, seed: int, trace: Path, requests: int) -> Row:
    """Runs it. `seed`: of who asks when, whose requests they are, and of ties. Raises BadTrace."""
    agents = case.experiment == "agents"
    slo, cluster, source = _agents(case, seed) if agents else _replayed(case, seed, trace, requests)
    outcome = simulate(cluster, source, seed)
    figures = outcome.figures(slo)
    refused = _share(outcome.measured())
    return Row(case, seed, figures.attained, refused, figures.goodput, figures.hit_ratio, figures.attained_by_kind)


def _share(requests: Sequence[Request]) -> float:
    return sum(request.ttft_s == FAILED for request in requests) / max(1, len(requests))


def _agents(case: Case, seed: int) -> tuple[Slo, Cluster, Source]:
    cluster = Cluster(PROFILES["32b"], workers=8, admission=_admission(case, 2.0, 0.0))
    return AGENT_SLO, cluster, Users(BEHAVIOURS["agents"], int(case.load), seed, warm_s=80.0, until_s=200.0)


def _replayed(case: Case, seed: int, trace: Path, requests: int) -> tuple[Slo, Cluster, Source]:
    marked = _marked(read(trace, seed), case.mix, seed)
    alone = case.mix == "others alone"
    asks = [ask for ask in marked if ask.kind == "others"] if alone else marked
    limit = int(requests * (len(asks) / len(marked)))
    cluster = Cluster(PROFILES["70b"], admission=_admission(case, 2.0, 1.5))
    return TRACE_SLO, cluster, replay(asks, HOLDING * case.load, Slice(0.5, 1.0, limit))


def _marked(asks: Sequence[Ask], mix: Mix, seed: int) -> list[Ask]:
    rng = Random(seed)
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
    if case.how == AT_ONCE:
        return None
    if case.how == "default settings":
        return AdmissionSettings()
    names = (("interactive", 100, 0.0, 1.0), ("default", 0, 0.1, 0.9), ("batch", -100, 0.05, 0.5))
    classes = tuple(
        ClassSettings(name=name, priority=priority, share=share, fill=fill, ttft_s=ttft_s, ttft_prefills=ttft_prefills)
        for name, priority, share, fill in names
    )
    return AdmissionSettings(classes=classes, room=Room(tpot_s=TPOT_S if case.how == FULL else None))
