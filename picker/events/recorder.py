"""Takes down each decision and its outcome, and tells whoever listens. The hot path's side of this room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from picker.events.decided import NOTHING, Asked, Decided, Moment, Seen
from picker.events.record import RuledOut
from picker.events.ring import Ring
from picker.events.settings import Events
from picker.events.shortened import Roster, kept_bytes
from picker.fleet.inflight import Booking
from picker.scheduling.decision import Routed
from picker.scheduling.request import SchedulingRequest

_BY_US = "picker:"
"""With this begin the details of answers that `picker.extproc.wire` has Envoy give: the request had to give way."""

Listener = Callable[[Decided], None]


class Logged(Protocol):
    """What Envoy logs of an exchange (`picker.extproc.access_log.Outcome`)."""

    @property
    def request_id(self) -> str: ...  # noqa: D102
    @property
    def status(self) -> int: ...  # noqa: D102
    @property
    def attempts(self) -> int: ...  # noqa: D102
    @property
    def served(self) -> str: ...  # noqa: D102
    @property
    def is_cancelled(self) -> bool: ...  # noqa: D102
    @property
    def is_broken(self) -> bool: ...  # noqa: D102
    @property
    def details(self) -> str: ...  # noqa: D102


class Recorder:
    """One picker's. Where `ring` is 0 nothing is kept, and listeners hear of decisions all the same. `wall`: Unix time.

    `on_decided` are told of each decision at once, `on_ended` once its request has ended: in the request's own time.
    """

    def __init__(
        self, settings: Events, process: str, known_names: Iterable[str] = (), wall: Callable[[], float] = time.time
    ):
        self.ring = Ring(settings.ring, settings.ring_bytes)
        self.process = process
        self.on_decided: list[Listener] = []
        self.on_ended: list[Listener] = []
        self.hears_log = False
        """Whether Envoy's access log comes here."""
        self._keeps = settings.ring > 0
        self._known_names = frozenset((*settings.tenants, *known_names))
        self._wall = wall
        self._number = 0
        self._open: dict[Booking, Decided] = {}

    def __repr__(self) -> str:
        return f"<Recorder {self.ring!r}, {len(self._open)} open>"

    @property
    def is_on(self) -> bool:
        """Whether anybody wants to know."""
        return self._keeps or bool(self.on_decided or self.on_ended)

    def routed(
        self,
        asked: Asked,
        about: SchedulingRequest,
        decision: Routed,
        booking: Booking,
        roster: Roster,
        ties: int,
        moment: Moment,
        done_at: float,
        seen: Seen | None = None,
    ) -> Decided:
        """A request was placed."""
        decided = self.imagined("route", "", 0, asked, about, decision, roster, moment, ties)
        decided.done_at, decided.seen = done_at, seen
        decided.chosen = roster.get(decision.slots[0])
        decided.size = kept_bytes(about, decision)
        self._open[booking] = decided
        self._note(decided)
        return decided

    def refused(
        self,
        reason: str,
        status: int,
        moment: Moment,
        asked: Asked = NOTHING,
        about: SchedulingRequest | None = None,
        ruled_out: tuple[RuledOut, ...] = (),
        roster: Roster = {},  # noqa: B006 - nobody writes to it
        ties: int = 0,
        seen: Seen | None = None,
    ) -> None:
        """A request was refused; without `about` before its body was understood."""
        decided = self.imagined("refuse", reason, status, asked, about, None, roster, moment, ties)
        decided.ruled_out, decided.seen = ruled_out, seen
        decided.end, decided.answer = "refused", status
        self._note(decided)
        self._end(decided)

    def passed(self, reason: str, moment: Moment) -> None:
        """A request was left to Envoy's own choice."""
        decided = self.imagined("pass", reason, 0, NOTHING, None, None, {}, moment, 0)
        decided.end = "passed"
        self._note(decided)
        self._end(decided)

    def replied(self, booking: Booking, now: float) -> None:
        """The answer to the proxy has gone out."""
        if decided := self._open.get(booking):
            decided.replied_at = now

    def first_byte(self, booking: Booking, status: int, served: str, now: float) -> None:
        """A worker has begun to answer."""
        if decided := self._open.get(booking):
            decided.answer, decided.served, decided.first_byte_at = status, served, now

    def told(self, booking: Booking, prompt_tokens: int, cached_tokens: int | None, output_tokens: int) -> None:
        """A response has told what it took."""
        if decided := self._open.get(booking):
            decided.learn(prompt_tokens=prompt_tokens, cached_tokens=cached_tokens, output_tokens=output_tokens)

    def released(self, booking: Booking, now: float, is_unfinished: bool = False) -> None:
        """The exchange is over. `is_unfinished`: its response has begun to pass and has not come to its end."""
        if decided := self._open.pop(booking, None):
            decided.end, decided.ended_at = _end_of(decided.answer, is_unfinished), now
            self._end(decided)

    def logged(self, exchange: Logged) -> None:
        """Envoy has logged an exchange, some time after it was over."""
        self.hears_log = True
        for decided in self.ring.find_request(exchange.request_id):
            if decided.verdict == "route" and not decided.is_logged:
                _complete(decided, exchange)
                return

    def _note(self, decided: Decided) -> None:
        self._number += 1
        decided.number = self._number
        if self._keeps:
            self.ring.add(decided)
        for tell in self.on_decided:
            tell(decided)

    def _end(self, decided: Decided) -> None:
        for tell in self.on_ended:
            tell(decided)

    def imagined(
        self,
        verdict: str,
        reason: str,
        status: int,
        asked: Asked,
        about: SchedulingRequest | None,
        decision: Routed | None,
        roster: Roster,
        moment: Moment,
        ties: int,
    ) -> Decided:
        """A decision that is in no ring, and that nobody is told of."""
        return Decided(
            0, self.process, self._wall(), moment, verdict, reason, status, asked, about, decision, roster,
            self._known_names, ties,
        )  # fmt: skip


def _complete(decided: Decided, logged: Logged) -> None:
    decided.end = _logged_end(decided.end, logged)
    decided.answer = logged.status or decided.answer
    decided.served = logged.served or decided.served
    decided.learn(attempts=logged.attempts, details=logged.details or "logged")


def _logged_end(before: str, logged: Logged) -> str:
    """`before` is what the stream has told, which may have ended early for several reasons."""
    if logged.is_cancelled:
        return "cancelled"
    if logged.status >= 500 or logged.is_broken:
        return "failed"
    if logged.details.startswith(_BY_US):
        return "refused"
    return "answered" if before == "cancelled" and logged.status else before


def _end_of(status: int, is_unfinished: bool) -> str:
    if status >= 500:
        return "failed"
    # Without the head of a response, or in the middle of one: the client did not wait, unless Envoy's log knows better.
    return "cancelled" if is_unfinished or not status else "answered"
