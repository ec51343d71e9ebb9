"""Between a request that was read and its placement: it is placed at once, waits for a worker with room, or is refused.

The rules are `picker.admission`'s; here are the clock, the loop and the futures. While anybody waits, one timer looks
again every few milliseconds; nobody has a task of his own, and while nobody waits there is no timer.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing
from itertools import islice
from random import Random
from typing import cast

import msgspec
import structlog

from picker.admission.control import Admission, Admitted, Failed, Verdict
from picker.admission.entry import Entry
from picker.admission.pace import retry_after_s
from picker.admission.quotas import Quotas
from picker.admission.refusals import MESSAGE, STATUS, Cause, Turned
from picker.admission.terms import Rules
from picker.config import Config
from picker.events.decided import Moment, Seen
from picker.extproc.events import NotPicked
from picker.fleet.view import View
from picker.observing import Observer
from picker.placing import Placement, Placer
from picker.requests.headers import read_terms
from picker.requests.model import Terms
from picker.scaling.signals import NONE_WAITS, Waiting
from picker.scheduling.decision import Decision, Refused, Routed
from picker.scheduling.request import SchedulingRequest
from picker.telemetry.metrics import Metrics, ModelReadings, Readings

log = structlog.get_logger()

_TICK_S = 0.005
"""How long a free place may go unnoticed."""
_SLICE = 32
"""Placed in one go; then others have the loop."""
_PREEMPTED_S = 2.0
"""Who was preempted is told to come back after about so long: how long the higher class needs nobody knows."""


class Settled(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What has become of a request, when, and what the decision saw."""

    outcome: Placement | Refused | Turned
    moment: Moment
    seen: Seen | None


Cutter = Callable[[Placement, NotPicked], None]
"""Refuses a request that was placed, if no response to it has begun."""
_Answer = tuple[Placement | Refused | Turned, float, Seen | None]


class Admitting:
    """The waiting room of one picker process."""

    def __init__(self, config: Config, view: View, placer: Placer, observer: Observer, metrics: Metrics):
        settings = config.admission
        self._is_on = settings.enabled
        self._trusts_header = settings.tenant_from == "header"
        # In a pool of several kinds of workers there may be room for a request though the queue is full.
        self._turns_away_early = not (config.profiles or config.requirement_headers)
        self._view = view
        self._placer = placer
        self._observer = observer
        self._metrics = metrics
        self._rules = Rules(settings, secrets.randbits(64), config.worker_model)
        self._rng = Random()
        self._admission = Admission(settings, view, config.worker_model, self._decide, self._rng.random)
        self.quotas = Quotas(settings.quotas)
        self._seen: Seen | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.cut: Cutter = _cut_nobody

    def __repr__(self) -> str:
        return f"<Admitting {self._admission!r}>"

    def configure(self, config: Config) -> None:
        """Other quotas and other weights of tenants from now on. Who waits already does so under those before."""
        self.quotas.configure(config.admission.quotas)
        self._rules.weigh(config.admission.tenants)
        self._admission.weigh(config.admission.tenants)

    async def admit(
        self, about: SchedulingRequest, terms: Terms, tenant: str, base: str, size: int, moment: Moment
    ) -> Settled:
        """Places it, once that is possible. Whoever is cancelled here has left the queue, and the books.

        `tenant` is the one in the proxy's own metadata; `base` the model under whose name workers cache; `size` the
        body's, in bytes. Raises what deciding raised.
        """
        if not self.quotas:
            return await self._admit(about, terms, tenant, base, size, moment)
        whose, tokens = self._whose(terms, tenant), about.prompt_tokens + about.expected_output_tokens
        charges, wait_s = self.quotas.take(whose, base, tokens, moment.now)
        if wait_s:
            return Settled(Turned(Cause.QUOTA, retry_after_s(wait_s, self._rng.random())), moment, None)
        settled = None
        try:
            settled = await self._admit(about, terms, tenant, base, size, moment)
            return settled
        finally:
            if settled is None or not isinstance(settled.outcome, Placement):
                self.quotas.give_back(charges)

    async def _admit(
        self, about: SchedulingRequest, terms: Terms, tenant: str, base: str, size: int, moment: Moment
    ) -> Settled:
        now = moment.now
        if not self._is_on:
            seen = self._observer.before(about, now)
            return Settled(self._placer.place(about, now), moment, seen)
        entry = self._entry(about, terms, tenant, base, size, now)
        self._seen = None
        verdict = self._admission.arrive(entry, now)
        if verdict is not None:
            return Settled(self._act(entry, verdict, now), moment, self._seen)
        return await self._wait(entry, moment)

    def turn_away(self, headers: Mapping[str, str], tenant: str, size: int) -> Turned | None:
        """The refusal of a request of this size of which only the headers are known; None where it may come in."""
        if not self._admission.waiting or not self._turns_away_early or len(self._view.model_names()) > 1:
            return None
        terms = read_terms(headers)
        return self._admission.is_full(self._rank(terms), self._tenant(terms, tenant), size)

    def consumed(self, placement: Placement, tokens: int) -> None:
        """What a request has cost in truth: prompt tokens that were computed, and answered ones."""
        if placement.entry:
            self._admission.consumed(placement.entry, tokens)

    def not_to_be_cut(self, placement: Placement) -> None:
        """It is being answered, or is over."""
        self._admission.preemption.gone(placement)

    def drain(self) -> None:
        """Whoever waits is told to go elsewhere, and so is from now on whoever would have to wait."""
        now, count = time.monotonic(), 0
        for entry, verdict in self._admission.drain():
            self._settle(entry, verdict, now)
            count += 1
        if count:
            log.info("queue_drained", requests=count)

    def readings(self) -> Readings:
        """Gauges."""
        waiting = self._admission.waiting
        oldest = waiting.oldest()
        age_s = time.monotonic() - oldest.arrived_at if oldest else 0.0
        return {
            "queue_requests": ("Requests that wait for a worker with room.", waiting.total.requests),
            "queue_bytes": ("Bytes of their bodies.", waiting.total.bytes),
            "queue_tokens": ("Tokens of their prompts.", waiting.total.tokens),
            "queue_oldest_seconds": ("How long the oldest of them has waited.", age_s),
        }

    def by_model(self, now: float) -> dict[str, Waiting]:
        """What waits, by the model that was asked for."""
        found: dict[str, Waiting] = {}
        for entry in self._admission.waiting:
            asked = entry.request.model
            if not asked:
                continue
            name = self._view.base_and_adapter(asked)[0] or asked
            before = found.get(name, NONE_WAITS)
            oldest_s = max(before.oldest_s, now - entry.arrived_at)
            found[name] = Waiting(before.requests + 1, before.tokens + entry.request.prompt_tokens, oldest_s)
        return found

    def queues(self) -> dict[str, tuple[int, float]]:
        """Requests that wait, and for how many seconds the oldest has, by class."""
        now, found = time.monotonic(), dict[str, tuple[int, float]]()
        for entry in self._admission.waiting:
            name = self._rules.classes[entry.rank].name
            count, oldest_s = found.get(name, (0, 0.0))
            found[name] = count + 1, max(oldest_s, now - entry.arrived_at)
        return found

    def by_class(self) -> ModelReadings:
        """Gauges for each class."""
        sums = self._admission.waiting.by_class
        depths = {each.name: float(sums[rank].requests) for rank, each in enumerate(self._rules.classes)}
        return {"queue_class_requests": ("Requests that wait for a worker with room, by class.", depths)}

    # In.

    def _entry(self, about: SchedulingRequest, terms: Terms, tenant: str, base: str, size: int, now: float) -> Entry:
        rank = self._rank(terms)
        due = self._rules.deadlines(rank, terms, about.prompt_tokens, now)
        return Entry(
            request=about,
            rank=rank,
            lane=_lane(about, base),
            tenant=self._tenant(terms, tenant),
            size=size,
            arrived_at=now,
            leave_at=due.leave_at,
            workers_by=due.workers_by,
            first_token_by=due.first_token_by,
            cost=about.prompt_tokens + about.expected_output_tokens,
        )

    def _rank(self, terms: Terms) -> int:
        if not terms.objective:
            return self._rules.default_rank
        rank = self._rules.rank(terms.objective)
        if rank is None:
            self._metrics.unknown_objectives.inc()
            return self._rules.default_rank
        return rank

    def _tenant(self, terms: Terms, tenant: str) -> str | int:
        return self._rules.tenant(self._whose(terms, tenant))

    def _whose(self, terms: Terms, tenant: str) -> str:
        return terms.tenant if self._trusts_header else tenant

    def _decide(self, about: SchedulingRequest, now: float) -> tuple[Decision, Routed | None]:
        self._seen = self._observer.before(about, now)
        return self._placer.decide(about, now)

    def _act(self, entry: Entry, verdict: Verdict, now: float) -> Placement | Refused | Turned:
        if isinstance(verdict, Failed):
            raise verdict.error
        if not isinstance(verdict, Admitted):
            return verdict
        has_waited = entry.number > 0
        placement = self._placer.book(
            entry.request, verdict.decision, verdict.prefill, now, entry if has_waited else None
        )
        after_s = self._rules.classes[entry.rank].preempted_after_s
        # Where the proxy does not tell when a response begins, a cut would end one in its middle.
        if after_s is not None and self._placer.hears_answers:
            self._admission.preemption.placed(placement, placement.booking.slot, entry.rank, after_s)
        return placement

    # And out.

    async def _wait(self, entry: Entry, moment: Moment) -> Settled:
        entry.ticket = future = asyncio.get_running_loop().create_future()
        self._look_again(_TICK_S)
        try:
            outcome, now, seen = await future
        # Also when nobody ever goes on with this: then it is closed.
        except BaseException:
            self._gone(entry, future)
            raise
        self._metrics.waited(self._rules.classes[entry.rank].name, now - moment.now)
        return Settled(outcome, msgspec.structs.replace(moment, now=now), seen)

    def _gone(self, entry: Entry, future: asyncio.Future[_Answer]) -> None:
        self._admission.leave(entry)
        if future.done() and not future.cancelled() and not future.exception():
            placed = future.result()[0]
            if isinstance(placed, Placement):
                self._placer.release(placed, time.monotonic())

    def _look_again(self, after_s: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(after_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now, count = time.monotonic(), 0
        with closing(self._admission.dispatch(now)) as leaving:
            for entry, verdict in islice(leaving, _SLICE):
                self._settle(entry, verdict, now)
                count += 1
        for victim in self._admission.preemption.victims(now):
            self._preempt(cast(Placement, victim))
        if self._admission.waiting:
            self._look_again(0.0 if count == _SLICE else _TICK_S)

    def _preempt(self, victim: Placement) -> None:
        self._metrics.preempted.inc()
        self.cut(victim, not_picked(Turned(Cause.PREEMPTED, retry_after_s(_PREEMPTED_S, self._rng.random()))))

    def _settle(self, entry: Entry, verdict: Verdict, now: float) -> None:
        # Its result holds the placement, and that the entry: nobody but the collector would ever take them apart.
        future, entry.ticket = cast("asyncio.Future[_Answer]", entry.ticket), None
        # Whoever was cancelled a moment ago has not gone yet.
        if future.done():
            return
        try:
            future.set_result((self._act(entry, verdict, now), now, self._seen))
        except Exception as error:
            future.set_exception(error)


def not_picked(turned: Turned) -> NotPicked:
    """What the client is told."""
    return NotPicked(STATUS[turned.cause], turned.cause, MESSAGE[turned.cause], turned.retry_after_s)


def _cut_nobody(placement: Placement, refusal: NotPicked) -> None:
    """Until somebody can."""


def _lane(about: SchedulingRequest, base: str) -> Hashable:
    """Whom the same workers may serve."""
    require = tuple(sorted((label, tuple(values)) for label, values in about.require.items())) if about.require else ()
    return base, about.subset, about.profile.name, require
