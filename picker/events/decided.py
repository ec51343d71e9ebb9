"""A decision as it was made, by reference: what the hot path keeps. The record is built when somebody asks for it.

The arrays are those that `decide` made and nobody changes any more, so nothing needs to be copied; names of workers
come from the roster of that moment.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
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


class Asked(msgspec.Struct, frozen=True, gc=False):
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


class Moment(msgspec.Struct, frozen=True, gc=False):
    """When what happened to a request, by the monotonic clock: 0 is not known, or not yet.

    Its headers came at `began_at`, it was all there at `started_at`, read at `read_at`, its prompt was known at
    `known_at`, and it was decided about at `now`.
    """

    started_at: float
    now: float
    began_at: float = 0.0
    read_at: float = 0.0
    known_at: float = 0.0


# A picker keeps ten thousand of these, and they are in no cycles: the collector need not look at them.
class Decided(msgspec.Struct, eq=False, gc=False):
    """One decision and, as it comes to be known, its outcome. `at` is Unix time, the other times are monotonic.

    `done_at` is when the decision was made, `replied_at` when the answer had gone out. `chosen` is the worker that it
    was placed on, `label` what metrics call its model. `size`: bytes that are kept for a record that is not built yet,
    about. `seen` is what it saw of the fleet, where that is recorded. `about` and `decision` are None where a request
    was refused, or left to Envoy, before anything was decided.

    Of the outcome: `end` as in `picker.events.record.Outcome`, `answer` is the response's status, 0 while none is
    known, `more` what else there is, under the names that it has there.
    """

    number: int
    process: str
    at: float
    moment: Moment
    verdict: str
    reason: str
    status: int
    asked: Asked
    about: SchedulingRequest | None
    decision: Routed | None
    roster: Roster
    known_names: Container[str]
    ties: int = 0
    done_at: float = 0.0
    replied_at: float = 0.0
    ruled_out: tuple[RuledOut, ...] = ()
    chosen: WorkerFacts | None = None
    span: Span | None = None
    seen: Seen | None = None
    label: str = ""
    size: int = 0
    end: str = "open"
    answer: int = 0
    served: str = ""
    first_byte_at: float | None = None
    ended_at: float | None = None
    more: dict[str, Any] | None = None
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
    def stages(self) -> Stages:
        """Where the time went."""
        when = self.moment
        return Stages(
            receive_s=_between(when.began_at, when.started_at),
            read_s=_between(when.started_at, when.read_at),
            prompt_s=_between(when.read_at, when.known_at),
            queue_s=_between(when.known_at, when.now),
            decide_s=_between(when.now, self.done_at),
            reply_s=_between(self.done_at, self.replied_at),
        )

    @property
    def outcome(self) -> Outcome:
        """As far as it is known."""
        return Outcome(
            end=self.end,
            status=self.answer,
            served=self.served,
            first_byte_s=self.since_decision(self.first_byte_at),
            duration_s=self.since_decision(self.ended_at),
            **(self.more or {}),
        )

    def since_decision(self, at: float | None) -> float | None:
        """Seconds from the decision to this time, to a microsecond; None where it has not come."""
        return None if at is None else round(at - self.moment.now, 6)

    @property
    def is_logged(self) -> bool:
        """Whether Envoy's access log has told of it."""
        return self.more is not None and "details" in self.more

    def learn(self, **facts: object) -> None:
        """More of the outcome has come to be known; the names are those of `Outcome`."""
        self.more = {**(self.more or {}), **facts}

    def shorten(self) -> None:
        """Takes out of the arrays what is told of the workers that were named, while it is at hand."""
        if self.decision:
            self._short = shortened(self.decision, self.roster, self.decision.slots)
        self._request = self._of_request()

    def compact(self) -> None:
        """Lets go of the arrays, once it was shortened: of workers that were not named nothing is known then."""
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
            "model": shown(about.model or "", self._is_served(about.model or "")),
            "adapter": about.adapter,
            "prompt_tokens": about.prompt_tokens,
            "expected_output_tokens": about.expected_output_tokens,
            "profile": about.profile.name,
        }

    def _is_served(self, model: str) -> bool:
        chosen = self.chosen
        return bool(chosen and model in chosen.models) or is_served(model, self.roster)

    def _of_decision(self) -> Short | None:
        decision = self.decision
        return shortened(decision, self.roster, _cheapest(decision)) if decision else self._short


def _between(earlier: float, later: float) -> float:
    return later - earlier if earlier and later else 0.0


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


class Short(msgspec.Struct, frozen=True, gc=False):
    """A decision without its arrays: the cheapest workers of it, as names and endpoints.

    `hits` are theirs, in their order, and `costs` for each of `terms` theirs, one after another.
    """

    policy: str
    endpoints: tuple[str, ...]
    hit_tokens: int
    best_hit_tokens: int
    predicted_prefill_s: float
    is_detour: bool
    eligible: int
    ruled_out: tuple[RuledOut, ...]
    workers: tuple[tuple[str, str], ...]
    hits: tuple[int, ...]
    terms: tuple[str, ...]
    costs: tuple[float, ...]

    def told(self) -> dict[str, Any]:
        """As fields of a record."""
        fields = msgspec.structs.asdict(self)
        for name in ("workers", "hits", "terms", "costs"):
            del fields[name]
        return {**fields, "candidates": tuple(map(self._candidate, range(len(self.workers))))}

    def _candidate(self, rank: int) -> Candidate:
        worker, endpoint = self.workers[rank]
        costs = self.costs[rank :: len(self.workers)]
        return Candidate(
            worker=worker,
            endpoint=endpoint,
            cost=round(sum(costs), 6),
            hit_tokens=self.hits[rank],
            terms={name: round(cost, 6) for name, cost in zip(self.terms, costs, strict=True)},
        )


def shortened(decision: Routed, roster: Roster, chosen: Sequence[int]) -> Short:
    """What is known of these slots. In a large fleet each decision comes to this, so it must not cost much."""
    hits, terms, eligible = decision.hits, decision.terms, int(np.count_nonzero(decision.eligible))
    is_anybody_out = eligible < int(np.count_nonzero(decision.known))
    return Short(
        policy=decision.policy,
        endpoints=decision.endpoints,
        hit_tokens=decision.hit_tokens,
        best_hit_tokens=best_hit_tokens(decision),
        predicted_prefill_s=round(decision.work_s, 6),
        is_detour=decision.is_detour,
        eligible=eligible,
        ruled_out=exclusions_of(decision, roster) if is_anybody_out else (),
        workers=tuple([(facts.worker, facts.endpoint) for facts in map(roster.__getitem__, chosen)]),
        hits=tuple([hits.item(slot) for slot in chosen]),
        terms=tuple(terms),
        costs=tuple([values.item(slot) for values in terms.values() for slot in chosen]),
    )


def best_hit_tokens(decision: Routed) -> int:
    """The most that any worker holds that could have been chosen."""
    hits = decision.hits
    # Half the time of max().
    best = int(hits.item(int(hits.argmax())))
    return best if best <= decision.hit_tokens else int(hits[decision.eligible].max())


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
