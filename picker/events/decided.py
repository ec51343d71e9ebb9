"""A decision as it was made, by reference: what the hot path keeps. The record is built when somebody asks for it.

The arrays are those that `decide` made and nobody changes any more, so nothing needs to be copied; names of workers
come from the roster of that moment.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from picker.events.record import Candidate, Outcome, Record, RuledOut, Stages, identifier, shown
from picker.fleet.facts import WorkerFacts
from picker.fleet.freeze import Frozen
from picker.fleet.masks import Bools, Ints
from picker.requests.model import Dialect, Terms
from picker.scheduling.decision import Decision, Routed, ruled_out
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

    `chosen` is the worker that it was placed on, `model_label` what metrics call its model. `size`: bytes that are kept
    for a record that is not built yet, about. `seen` is what it saw of the fleet, where that is recorded. `about` and
    `decision` are None where a request was refused, or left to Envoy, before anything was decided.
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
    chosen: WorkerFacts | None = None
    span: Span | None = None
    model_label: str | None = None
    seen: Seen | None = None
    size: int = 0
    _told: dict[str, Any] = field(default_factory=dict)
    _request: dict[str, Any] | None = None
    _short: Short | None = None
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
    def outcome(self) -> Outcome:
        """As far as it is known."""
        return Outcome(**self._told)

    @property
    def status_told(self) -> int:
        """The response's, 0 while none is known."""
        return int(self._told.get("status", 0))

    def learn(self, **facts: object) -> None:
        """More of the outcome has come to be known; the names are those of `Outcome`."""
        self._told.update(facts)

    def compact(self) -> None:
        """Lets go of the arrays, but for those of the workers that were named: of the others nothing is known then."""
        if self.decision:
            self._short = shortened(self.decision, self.roster, self.decision.slots)
        self._request = self._of_request()
        self.decision, self.about, self.roster = None, None, {}

    def record(self) -> Record:
        """With the outcome as far as it is known."""
        if self._record is None:
            self._record = self._build()
        outcome = self.outcome
        if self._record.outcome != outcome:
            self._record = msgspec.structs.replace(self._record, outcome=outcome)
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
            **self._of_request(),
            **{"ruled_out": self.ruled_out, **(short.told() if (short := self._of_decision()) else {})},
        )

    def shown_name(self, name: str) -> str:
        """A tenant or an objective as it may be told."""
        return shown(name, "*" in self.known_names or name in self.known_names)

    def _of_request(self) -> dict[str, Any]:
        about = self.about
        if about is None:
            return self._request or {}
        return {
            "sequence": about.sequence,
            "model": shown(about.model or "", is_served(about.model or "", self.roster)),
            "adapter": about.adapter,
            "prompt_tokens": about.prompt_tokens,
            "expected_output_tokens": about.expected_output_tokens,
            "profile": about.profile.name,
        }

    def _of_decision(self) -> Short | None:
        decision = self.decision
        return shortened(decision, self.roster, _cheapest(decision)) if decision else self._short


_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def parsed(traceparent: str) -> tuple[str, str, bool] | None:
    """Trace, span above, and whether it is sampled, of a W3C `traceparent`; None where it is none."""
    match = _TRACEPARENT.fullmatch(traceparent)
    return (match[1], match[2], bool(int(match[3], 16) & 1)) if match else None


def trace_id_of(traceparent: str) -> str:
    """Of a W3C `traceparent`, "" where it is none."""
    found = parsed(traceparent) if traceparent else None
    return found[0] if found else ""


def kept_bytes(about: SchedulingRequest, decision: Routed) -> int:
    """Of arrays and of the prompt's blocks, about."""
    arrays = 8 * (1 + len(decision.terms)) + len(decision.steps)
    return len(decision.known) * arrays + _INT_BYTES * len(about.chain)


def is_served(model: str, roster: Roster) -> bool:
    """Whether any worker has a model or adapter of this name."""
    return any(model in facts.models or model in facts.adapters for facts in roster.values())


@dataclass(frozen=True, slots=True)
class Short:
    """A decision without its arrays: the cheapest workers of it. `terms` and `hits` are theirs, in their order."""

    decision: dict[str, Any]
    workers: list[tuple[str, str]]
    terms: dict[str, list[float]]
    hits: list[int]

    def told(self) -> dict[str, Any]:
        """As fields of a record."""
        return {**self.decision, "candidates": tuple(map(self._candidate, range(len(self.workers))))}

    def _candidate(self, rank: int) -> Candidate:
        worker, endpoint = self.workers[rank]
        terms = {name: values[rank] for name, values in self.terms.items()}
        return Candidate(
            worker=worker,
            endpoint=endpoint,
            cost=round(sum(terms.values()), 6),
            hit_tokens=self.hits[rank],
            terms={name: round(value, 6) for name, value in terms.items()},
        )


def shortened(decision: Routed, roster: Roster, chosen: Sequence[int]) -> Short:
    """What is known of these slots. In a large fleet each decision comes to this, so it must not cost much."""
    slots = np.array(chosen)
    best = int(decision.hits.max())
    if best > decision.hit_tokens:
        best = int(decision.hits[decision.eligible].max())
    return Short(
        decision={
            "policy": decision.policy,
            "endpoints": decision.endpoints,
            "hit_tokens": decision.hit_tokens,
            "best_hit_tokens": best,
            "predicted_prefill_s": round(decision.work_s, 6),
            "is_detour": decision.is_detour,
            "eligible": int(np.count_nonzero(decision.eligible)),
            "ruled_out": exclusions_of(decision, roster),
        },
        workers=[(facts.worker, facts.endpoint) for facts in map(roster.__getitem__, slots.tolist())],
        terms={name: values[slots].tolist() for name, values in decision.terms.items()},
        hits=decision.hits[slots].tolist(),
    )


def exclusions_of(decision: Decision, roster: Roster) -> tuple[RuledOut, ...]:
    """Who was ruled out by what, rule by rule in their order."""
    return tuple(_ruled_out(rule, out, roster) for rule, out in ruled_out(decision.known, decision.steps))


def _ruled_out(rule: str, out: Bools, roster: Roster) -> RuledOut:
    slots = np.flatnonzero(out)
    names = tuple(roster[slot].worker for slot in slots[:_MOST_NAMES].tolist() if slot in roster)
    return RuledOut(rule=rule, count=len(slots), workers=names)


def _cheapest(decision: Routed) -> list[int]:
    """The chosen slots in their order, then the next ones by cost."""
    count = min(MOST_CANDIDATES, int(np.count_nonzero(decision.eligible)))
    cost = np.where(decision.eligible, sum(decision.terms.values()), np.inf)
    near = np.argpartition(cost, count - 1)[:count]
    ranked: list[int] = near[np.argsort(cost[near], kind="stable")].tolist()
    return list(dict.fromkeys((*decision.slots, *ranked)))[: max(count, len(decision.slots))]
