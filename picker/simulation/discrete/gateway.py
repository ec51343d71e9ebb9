"""A picker process of the simulation: the production view, books and `decide`, fed late as in production."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from picker.admission.control import Admission, Admitted, Failed, Verdict
from picker.admission.entry import Entry
from picker.admission.refusals import Turned
from picker.admission.settings import AdmissionSettings
from picker.admission.terms import Rules
from picker.fleet.inflight import Booking
from picker.fleet.view import View
from picker.requests.model import Terms
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import Policy
from picker.scheduling.request import SchedulingRequest
from picker.simulation.discrete.workload import Ask

MODEL = "model"
SWEEP_S = 0.25
"""As in `picker.server`."""
_EVERYTHING = 1 << 62


@dataclass(frozen=True, slots=True)
class Facts:
    """What an agent says of a worker (`picker.fleet.view.WorkerFacts`)."""

    worker: str
    epoch: int
    endpoint: str
    kv_capacity_tokens: int
    adapters: Sequence[str] = ()
    adapter_slots: int = 0
    state: str = "ready"
    models: Sequence[str] = (MODEL,)
    publishes_kv: bool = True
    context_limit_tokens: int = 1 << 20
    resident_adapters: Sequence[str] = ()
    gpu: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    engine: str = "simulated"
    version: str = ""
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent says of a worker's load (`picker.fleet.view.WorkerLoad`)."""

    beat: int
    running: int
    waiting: int
    waiting_tokens: int
    kv_used: float
    looked_up_tokens: int
    reused_tokens: int
    generated_tokens: int
    finished: int
    first_tokens: int


@dataclass(frozen=True, slots=True)
class Change:
    """What a worker's cache has announced: blocks that are there now, and blocks that have left."""

    stored: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Away:
    """Refused. `retry_after_s`: when its client is told to come back, 0 where it is not told."""

    retry_after_s: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """A request on its way: the workers to try, in order, and its booking on the first."""

    workers: tuple[int, ...]
    booking: Booking


class Gateway:
    """One picker. It sees first what agents have published `event_delay_s` ago."""

    def __init__(
        self,
        policy: Policy,
        model: WorkerModel,
        workers: int,
        rng: Random,
        admission: AdmissionSettings | None = None,
    ):
        self.view = View(capacity=workers)
        self.admission = Admission(admission, self.view, model, self._decide, rng.random) if admission else None
        self._rules = Rules(admission or AdmissionSettings(), 0, model)
        self._policy = policy
        self._model = model
        self._rng = rng
        self._sequence = 0
        self._slots: dict[int, int] = {}
        self._workers: dict[int, int] = {}
        self._inbox: deque[tuple[float, int, Change]] = deque()
        self._swept_at = 0.0

    def __repr__(self) -> str:
        return f"<Gateway {self.view!r}>"

    def admit(self, worker: int, facts: Facts, now: float) -> None:
        """A worker has come, or come back with an empty cache."""
        old = self._slots.get(worker)
        self._inbox = deque(entry for entry in self._inbox if entry[1] != old)
        slot = self.view.admit(facts, now)
        self.view.index.trust(slot, True)
        self._slots[worker], self._workers[slot] = slot, worker

    def change(self, worker: int, facts: Facts) -> None:
        """A worker's record says something else: that it drains, or that it does not after all."""
        self.view.update_facts(self._slots[worker], facts)

    def retire(self, worker: int) -> None:
        """A worker is gone, and is not expected back."""
        slot = self._slots.pop(worker)
        self._inbox = deque(entry for entry in self._inbox if entry[1] != slot)
        self.view.retire(slot)

    def report(self, worker: int, report: Report, now: float) -> None:
        """A worker's load has been published."""
        self.view.update_load(self._slots[worker], report, now)

    def announce(self, worker: int, change: Change, due: float) -> None:
        """A worker's cache has changed; this picker will know when it is due. Times never decrease."""
        self._inbox.append((due, self._slots[worker], change))

    def route(self, ask: Ask, blocks: Sequence[int], block_tokens: int, now: float) -> Placed | Away | None:
        """Decides and books; None where it waits, until `dispatch` names it."""
        self.catch_up(now)
        request = self._about(ask, blocks, block_tokens)
        self._sequence += 1
        if self.admission is None:
            decision = self._decide(request, now)[0]
            return self._outcome(request, Admitted(decision) if isinstance(decision, Routed) else decision, now)
        entry = self._entry(request, ask, now)
        verdict = self.admission.arrive(entry, now)
        return self._outcome(request, verdict, now) if verdict else None

    def dispatch(self, now: float) -> Iterator[tuple[Ask, Placed | Away]]:
        """Whose wait is over."""
        self.catch_up(now)
        if self.admission:
            for entry, verdict in self.admission.dispatch(now):
                yield entry.ticket, self._outcome(entry.request, verdict, now)

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        return len(self.admission.waiting) if self.admission else 0

    def _about(self, ask: Ask, blocks: Sequence[int], block_tokens: int) -> SchedulingRequest:
        return SchedulingRequest(
            sequence=self._sequence,
            model=ask.adapter or MODEL,
            prompt_tokens=ask.prompt_tokens,
            expected_output_tokens=self.view.lengths.mean(MODEL),
            chain=blocks,
            block_tokens=block_tokens,
            adapter=ask.adapter,
            session=ask.session,
        )

    def _entry(self, request: SchedulingRequest, ask: Ask, now: float) -> Entry:
        rank = self._rules.rank(ask.kind)
        rank = self._rules.default_rank if rank is None else rank
        due = self._rules.deadlines(rank, Terms(), ask.prompt_tokens, now)
        return Entry(
            request, rank, request.model, self._rules.tenant(ask.tenant), 4 * ask.prompt_tokens, now,
            due.leave_at, due.workers_by, due.first_token_by, ask, request.prompt_tokens,
        )  # fmt: skip

    def _decide(self, request: SchedulingRequest, now: float) -> tuple[Decision, None]:
        return decide(request, self.view, self._policy, self._model, now, self._rng), None

    def _outcome(self, request: SchedulingRequest, verdict: Verdict, now: float) -> Placed | Away:
        if isinstance(verdict, Failed):
            raise verdict.error
        if not isinstance(verdict, Admitted):
            return Away(verdict.retry_after_s if isinstance(verdict, Turned) else 0)
        decision, tokens = verdict.decision, request.prompt_tokens
        booking = self.view.place(decision.slots[0], request.chain, request.exact, decision.work_s, tokens, now)
        if request.adapter:
            self.view.use_adapter(decision.slots[0], request.adapter)
        self.view.reuse.placed(decision.slots[0], tokens, decision.hit_tokens, now)
        return Placed(tuple(self._workers[slot] for slot in decision.slots), booking)

    def release(self, booking: Booking, is_answered: bool, now: float) -> None:
        """The exchange is over."""
        self.catch_up(now)
        booking.is_answered = is_answered
        self.view.inflight.release(booking, now)

    def hear(self, others: Sequence[Gateway], now: float) -> None:
        """What the other pickers have in flight at this moment, and have placed since they last told."""
        view = self.view
        shares = [(other.view.inflight.share(other.view.epochs, now), now) for other in others]
        view.inflight.others.replace(shares, view.slots_of, now)

    def tell(self, others: Sequence[Gateway], now: float) -> None:
        """The other pickers learn what this one has placed."""
        for placement in self.view.routed.take(_EVERYTHING):
            for other in others:
                [slot] = other.view.slots_of(np.array([placement.epoch], np.uint64)).tolist()
                if slot >= 0:
                    other.view.expect(slot, placement.blocks, placement.is_awaited, now)

    def catch_up(self, now: float) -> None:
        """Everything that is due has been read."""
        view, inbox = self.view, self._inbox
        while inbox and inbox[0][0] <= now:
            due, slot, change = inbox.popleft()
            self._sweep(due)
            view.index.remove(slot, change.removed)
            view.index.store(slot, change.stored)
            if view.inflight.awaited:
                for block in change.stored:
                    view.inflight.announced(slot, block, due)
        self._sweep(now)

    def _sweep(self, now: float) -> None:
        if now - self._swept_at >= SWEEP_S:
            self.view.sweep(now)
            self._swept_at = now
