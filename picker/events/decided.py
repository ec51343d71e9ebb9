"""A decision as it was made, by reference: what the hot path keeps. The record is built when somebody asks for it.

The arrays are those that `decide` made and nobody changes any more, so nothing needs to be copied; names of workers
come from the roster of that moment.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import msgspec

from picker.events.record import Outcome, Record, RuledOut, Stages, identifier, shown
from picker.events.shortened import Roster, Short, cheapest, is_served, shortened
from picker.events.trace_context import Span, trace_id_of
from picker.fleet.facts import WorkerFacts
from picker.fleet.freeze import Frozen
from picker.fleet.masks import Bools, Ints
from picker.requests.model import Dialect, Terms
from picker.scheduling.decision import Routed
from picker.scheduling.request import SchedulingRequest


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
        """Lets go of the arrays: of workers that were not named nothing is known then."""
        if self._request is None:
            self.shorten()
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
        return shortened(decision, self.roster, cheapest(decision)) if decision else self._short


def _between(earlier: float, later: float) -> float:
    return later - earlier if earlier and later else 0.0
