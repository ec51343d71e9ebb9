"""A decision as it was made, by reference: what the hot path keeps. The record is built when somebody asks for it.

The arrays are those that `decide` made and nobody changes any more, so nothing needs to be copied; names of workers
come from the roster of that moment.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from picker.events.record import OPEN, Candidate, Outcome, Record, RuledOut, Stages, identifier, shown
from picker.fleet.facts import WorkerFacts
from picker.fleet.freeze import Frozen
from picker.fleet.inflight import Floats
from picker.fleet.masks import Bools, Ints
from picker.fleet.view import View
from picker.requests.model import Dialect, Terms
from picker.scheduling.decision import Routed
from picker.scheduling.eligibility import exclusions
from picker.scheduling.request import SchedulingRequest

MOST_CANDIDATES = 8
"""Candidates in a record."""

_MOST_NAMES = 16
_INT_BYTES = 44
"""Of a block's hash in a list."""

Roster = Mapping[int, WorkerFacts]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one decision saw. `hits` are blocks of the prompt on each slot, `loaded` who had its adapter."""

    frozen: Frozen
    roster: Roster
    hits: Ints
    loaded: Bools
    now: float


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for, by reference: names are as the client wrote them, and never leave as they are."""

    terms: Terms
    dialect: Dialect
    stream: bool
    rung: str
    traceparent: str = ""


NOTHING = Asked(Terms(), Dialect.UNKNOWN, False, "")


@dataclass(frozen=True, slots=True)
class Span:
    """A decision's place in a trace, as W3C has it: numbers of the trace, of the span above it ("" is none), of our
    own, and of the one for the worker's part, which is what the worker learns.
    """

    trace: str
    parent: str
    own: str
    upstream: str

    @property
    def traceparent(self) -> str:
        """For the worker."""
        return f"00-{self.trace}-{self.upstream}-01"


@dataclass(slots=True, eq=False)
class Decided:
    """One decision and, as it comes to be known, its outcome. `at` is Unix time, the other times are monotonic.

    `chosen` is the worker that it was placed on, `model_label` what metrics call its model.
    `seen` is what it saw of the fleet, where that is recorded. `about` and `decision` are None where a request was
    refused, or left to Envoy, before anything was decided.
    """

    number: int
    process: str
    at: float
    started_at: float
    decided_at: float
    verdict: str
    reason: str
    status: int
    asked: Asked
    about: SchedulingRequest | None
    decision: Routed | None
    roster: Roster
    known_names: Container[str]
    stages: Stages
    ties: int = 0
    ruled_out: tuple[RuledOut, ...] = ()
    outcome: Outcome = OPEN
    chosen: WorkerFacts | None = None
    span: Span | None = None
    model_label: str | None = None
    seen: Seen | None = None
    _record: Record | None = None

    @property
    def id(self) -> str:
        """Of this event; no other has it."""
        return f"{self.process}-{self.number}"

    @property
    def trace_id(self) -> str:
        """Of the trace that the request is part of, "" where it is of none."""
        return self.span.trace if self.span else trace_id_of(self.asked.traceparent)

    @property
    def size(self) -> int:
        """Bytes that are kept for a record that is not built yet, about."""
        if self.decision is None or self.about is None:
            return 0
        arrays = 8 * (1 + len(self.decision.terms)) + len(self.decision.steps)
        return len(self.decision.known) * arrays + _INT_BYTES * len(self.about.chain)

    def learn(self, **facts: object) -> None:
        """More of the outcome has come to be known; the names are those of `Outcome`."""
        self.outcome = msgspec.structs.replace(self.outcome, **facts)

    def compact(self) -> None:
        """Builds the record now and lets go of the arrays."""
        self._record = self.record()
        self.decision, self.about, self.roster = None, None, {}

    def record(self) -> Record:
        """With the outcome as far as it is known."""
        if self._record is None:
            self._record = self._build()
        if self._record.outcome is not self.outcome:
            self._record = msgspec.structs.replace(self._record, outcome=self.outcome)
        return self._record

    def _build(self) -> Record:
        terms = self.asked.terms
        return Record(
            id=self.id,
            at=self.at,
            verdict=self.verdict,
            request_id=identifier(terms.request_id),
            trace_id=self.trace_id,
            process=self.process,
            reason=self.reason,
            status=self.status,
            ties=self.ties,
            tenant=self.shown_name(terms.tenant),
            objective=self.shown_name(terms.objective),
            dialect=self.asked.dialect.value,
            stream=self.asked.stream,
            rung=self.asked.rung,
            stages=self.stages,
            outcome=self.outcome,
            **{"ruled_out": self.ruled_out, **self._of_request(), **self._of_decision()},
        )

    def shown_name(self, name: str) -> str:
        """A tenant or an objective as it may be told."""
        return shown(name, "*" in self.known_names or name in self.known_names)

    def _of_request(self) -> dict[str, Any]:
        about = self.about
        if about is None:
            return {}
        return {
            "sequence": about.sequence,
            "model": shown(about.model or "", is_served(about.model or "", self.roster)),
            "adapter": about.adapter,
            "prompt_tokens": about.prompt_tokens,
            "expected_output_tokens": about.expected_output_tokens,
            "profile": about.profile.name,
        }

    def _of_decision(self) -> dict[str, Any]:
        decision = self.decision
        if decision is None:
            return {}
        eligible = decision.eligible
        return {
            "policy": decision.policy,
            "endpoints": decision.endpoints,
            "hit_tokens": decision.hit_tokens,
            "best_hit_tokens": int(decision.hits[eligible].max()),
            "predicted_prefill_s": round(decision.work_s, 6),
            "eligible": int(np.count_nonzero(eligible)),
            "candidates": tuple(_candidate(slot, decision, self.roster) for slot in _cheapest(decision)),
            "ruled_out": ruled_out(decision.known, decision.steps, self.roster),
        }


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def parsed(traceparent: str) -> tuple[str, str, bool] | None:
    """Trace, span above, and whether it is sampled, of a W3C `traceparent`; None where it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (match[1], match[2], bool(int(match[3], 16) & 1)) if match else None


def trace_id_of(traceparent: str) -> str:
    """Of a W3C `traceparent`, "" where it is none."""
    found = parsed(traceparent) if traceparent else None
    return found[0] if found else ""


def is_served(model: str, roster: Roster) -> bool:
    """Whether any worker has a model or adapter of this name."""
    return any(model in facts.models or model in facts.adapters for facts in roster.values())


def ruled_out(known: Bools, steps: Iterable[tuple[str, Bools]], roster: Roster) -> tuple[RuledOut, ...]:
    """The rules that ruled anybody out, in their order. `steps` is whom each one has left of `known`."""
    found = []
    for rule, left in steps:
        out = np.flatnonzero(known & ~left)
        if len(out):
            names = tuple(roster[slot].worker for slot in out[:_MOST_NAMES].tolist() if slot in roster)
            found.append(RuledOut(rule=rule, count=len(out), workers=names))
        known = left
    return tuple(found)


def exclusions_of(about: SchedulingRequest, view: View, now: float) -> tuple[RuledOut, ...]:
    """Who was ruled out by what, of a request that was refused a moment ago."""
    roster = view.roster()
    found = []
    for rule, out in exclusions(about, view, now):
        slots = np.flatnonzero(out).tolist()
        names = tuple(roster[slot].worker for slot in slots[:_MOST_NAMES])
        found.append(RuledOut(rule=rule, count=len(slots), workers=names))
    return tuple(found)


def _cost(decision: Routed) -> Floats:
    return np.where(decision.eligible, sum(decision.terms.values()), np.inf)


def _cheapest(decision: Routed) -> list[int]:
    """The chosen slots in their order, then the next ones by cost."""
    cost = _cost(decision)
    count = min(MOST_CANDIDATES, int(np.count_nonzero(decision.eligible)))
    near = np.argpartition(cost, count - 1)[:count]
    ranked: list[int] = near[np.argsort(cost[near], kind="stable")].tolist()
    return list(dict.fromkeys((*decision.slots, *ranked)))[: max(count, len(decision.slots))]


def _candidate(slot: int, decision: Routed, roster: Roster) -> Candidate:
    terms = {name: float(values[slot]) for name, values in decision.terms.items()}
    return Candidate(
        worker=roster[slot].worker,
        endpoint=roster[slot].endpoint,
        cost=round(sum(terms.values()), 6),
        hit_tokens=int(decision.hits[slot]),
        terms={name: round(value, 6) for name, value in terms.items()},
    )
