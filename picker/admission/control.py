"""Admission: a request is placed at once while a worker has room, and else waits, or is told why it may not.

Where it goes is decided when it goes, with what is known then. Whoever calls books what is routed before anything else
is asked: the next decision must see it. So `dispatch` is an iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import msgspec

from picker.admission.detour import detour
from picker.admission.entry import NEVER, Entry
from picker.admission.gate import ColdGate
from picker.admission.lane import Lane
from picker.admission.pace import Pace, retry_after_s
from picker.admission.preemption import Preemption
from picker.admission.refusals import Cause, Turned
from picker.admission.room import WorkerRoom
from picker.admission.round import Round
from picker.admission.settings import AdmissionSettings, ClassSettings
from picker.admission.usage import WINDOW_S, Usage
from picker.admission.waiting import WaitingRoom
from picker.fleet.view import View
from picker.scheduling.decision import Decision, Reason, Refused, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.request import SchedulingRequest

Decide = Callable[[SchedulingRequest, float], tuple[Decision, Routed | None]]
"""Where a request should go at this time, and where its prompt is computed first; None for the same worker."""


class Admitted(msgspec.Struct, frozen=True, eq=False, gc=False):
    """To be placed, now: `decision`, and `prefill` where the prompt is computed on another worker first."""

    decision: Routed
    prefill: Routed | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Deciding has raised this, by a defect of ours."""

    error: Exception


Verdict = Admitted | Refused | Turned | Failed

_NOBODY = (Reason.NO_WORKERS, Reason.NOT_READY)
_DOUBT = 2.0
"""A request is refused for the wait that it would have if that would be too long by half as well."""
_LOOK_AGAIN_S = 0.2
"""A request whose worker had no room is decided anew after this, or when that worker has room."""


class Admission:
    """Who is placed, who waits, who is turned away. `chance` gives numbers in [0, 1), to spread clients who retry."""

    def __init__(
        self,
        settings: AdmissionSettings,
        view: View,
        model: WorkerModel,
        decide: Decide,
        chance: Callable[[], float],
    ):
        self.classes = ranked(settings)
        self.waiting = WaitingRoom([each.share for each in self.classes], self._weight)
        self.usage = Usage(self._weight)
        self.preemption = Preemption(_LOOK_AGAIN_S)
        self.pace = Pace()
        self.gate = ColdGate(settings.gate)
        self.is_draining = False
        self._asked_at = [-NEVER] * len(self.classes)
        self._displaced: list[Entry] = []
        self._settings = settings
        self._view = view
        self._model = model
        self._room = WorkerRoom(view, model, settings.room)
        self._decide = decide
        self._chance = chance

    def __repr__(self) -> str:
        return f"<Admission {self.waiting!r}>"

    def weigh(self, tenants: Mapping[str, float]) -> None:
        """These are the weights of tenants, from now on."""
        self._settings = msgspec.structs.replace(self._settings, tenants=dict(tenants))

    def arrive(self, entry: Entry, now: float) -> Verdict | None:
        """What becomes of a request that has come; None where it waits, until `dispatch` names it or it `leave`s."""
        decision: Decision | None = None
        self._asked_at[entry.rank] = now
        if self.waiting.is_first(entry.rank, entry.lane):
            decision, prefill = self._decide(entry.request, now)
            verdict = self._judge(entry, decision, prefill, now)
            if isinstance(verdict, Admitted):
                self._admit(entry, verdict, now)
            if verdict is not None:
                return verdict
        hits = self._hit_blocks(entry, decision)
        until = self._latest(entry, decision, hits)
        turned = self._turned_away(entry, until, hits, now)
        if turned is not None:
            return turned
        self.pace.elapse(bool(self.waiting), now)
        self.waiting.add(entry, until)
        return None

    def is_full(self, rank: int, tenant: str | int, size: int) -> Turned | None:
        """Whether a request of this size would be turned away, whatever else it says; None where it might not.

        Only for pools all of whose workers may serve it: in others there may be room for what it asks.
        """
        cause = self._no_place(rank, tenant, size, 0)
        return Turned(cause, self._retry_after_s(rank)) if cause else None

    def dispatch(self, now: float) -> Generator[tuple[Entry, Verdict], None, None]:
        """Those whose wait is over, in order. To be closed where it is not used up."""
        self.pace.elapse(bool(self.waiting), now)
        while self._displaced:
            gone = self._displaced.pop()
            yield gone, Turned(Cause.DISPLACED, self._retry_after_s(gone.rank))
        for late in self.waiting.expired(now):
            self.pace.ended(False)
            yield late, self._expired(late, now)
        with closing(Round(self.waiting, self._settings.scan)) as looked_at:
            for lane, entry in looked_at:
                verdict = self._look(entry, now)
                if verdict is None:
                    looked_at.pass_over(lane, entry)
                    self.preemption.wanted(entry.target, entry.rank, now - entry.arrived_at)
                else:
                    self._end(lane, entry, verdict, now)
                    yield entry, verdict

    def leave(self, entry: Entry) -> None:
        """The client has gone. What waits no longer is none of our business."""
        if not self.waiting.leave(entry) and entry in self._displaced:
            self._displaced.remove(entry)

    def drain(self) -> Iterator[tuple[Entry, Verdict]]:
        """Nobody waits any longer, from now on."""
        self.is_draining = True
        while self._displaced:
            yield self._displaced.pop(), Turned(Cause.SHUTTING_DOWN)
        for entry in self.waiting.everybody():
            yield entry, Turned(Cause.SHUTTING_DOWN)

    def consumed(self, entry: Entry, tokens: float) -> None:
        """A request has turned out to cost so many tokens."""
        self.waiting.charge(entry, tokens - entry.cost)
        entry.cost = tokens

    # Whether it may go.

    def _look(self, entry: Entry, now: float) -> Verdict | None:
        if entry.target >= 0 and now < entry.decide_after and not self._has_room(entry, entry.target, now):
            return None
        try:
            return self._judge(entry, *self._decide(entry.request, now), now)
        except Exception as error:  # one that cannot be decided about must not hold up the others
            return Failed(error)

    def _judge(self, entry: Entry, decision: Decision, prefill: Routed | None, now: float) -> Verdict | None:
        """What follows from a decision; None where it has to wait."""
        if isinstance(decision, Refused):
            return None if self._waits_for(entry, decision) else decision
        first = prefill or decision
        if not self._has_room(entry, first.slots[0], now):
            elsewhere = None if prefill else self._detour(decision, entry, now)
            if elsewhere is None:
                entry.target, entry.decide_after = first.slots[0], now + _LOOK_AGAIN_S
                return None
            decision = first = elsewhere
        slot = first.slots[0]
        late = self._late(entry, slot, first.work_s, now) if entry.first_token_by < NEVER else None
        return late or Admitted(decision, prefill)

    def _has_room(self, entry: Entry, slot: int, now: float) -> bool:
        return self._room.is_at(slot, now, self._share(entry, now))

    def _share(self, entry: Entry, now: float) -> float:
        """Of a worker's room: the last of it is left to tenants who have had less, and to higher classes."""
        is_outranked = any(now - at < WINDOW_S for at in self._asked_at[: entry.rank])
        return 1 - self._settings.room.kept * (self.usage.is_ahead(entry.tenant) + is_outranked)

    def _detour(self, decision: Routed, entry: Entry, now: float) -> Routed | None:
        most_s = self._settings.detour_s
        if not most_s:
            return None
        has_room = partial(self._room.is_at, now=now, share=self._share(entry, now))
        return detour(decision, entry.tokens, most_s, has_room, self._view, self._model)

    def _late(self, entry: Entry, slot: int, work_s: float, now: float) -> Turned | None:
        """Why it may not go to this worker, if its first token would come too late there.

        One whose own prefill alone takes too long is served all the same while nobody else waits.
        """
        wait_s, work_s = self._room.ttft_s(slot, work_s, now)
        if now + wait_s + work_s <= entry.first_token_by:
            return None
        if entry.arrived_at + work_s <= entry.first_token_by:
            return Turned(Cause.TOO_LATE, self._retry_after_s(entry.rank))
        if not self.waiting:
            return None
        return Turned(Cause.COLD, retry_after_s(self._settings.gate.retry_s, self._chance()))

    def _waits_for(self, entry: Entry, refused: Refused) -> bool:
        if refused.reason in _NOBODY:
            return self.classes[entry.rank].wait_for_workers_s > 0
        return refused.reason is Reason.FULL

    def _end(self, lane: Lane, entry: Entry, verdict: Verdict, now: float) -> None:
        self.pace.ended(isinstance(verdict, Admitted))
        if isinstance(verdict, Admitted):
            self.waiting.served(lane, entry, _cost(entry, verdict))
            self._admit(entry, verdict, now)
        else:
            self.waiting.dropped(lane, entry)

    def _admit(self, entry: Entry, admitted: Admitted, now: float) -> None:
        entry.cost = _cost(entry, admitted)
        self.usage.served(entry.tenant, entry.cost, now)
        self.gate.placed(entry.request.chain)

    # Whether it may wait.

    def _turned_away(self, entry: Entry, until: float, hits: int, now: float) -> Turned | None:
        if self.is_draining:
            return Turned(Cause.SHUTTING_DOWN)
        if until < entry.arrived_at or self._is_cold(entry, hits, now):
            return Turned(Cause.COLD, retry_after_s(self._settings.gate.retry_s, self._chance()))
        if self._is_hopeless(entry, now):
            return Turned(Cause.TOO_LATE, self._retry_after_s(entry.rank))
        cause = self._no_place(entry.rank, entry.tenant, entry.size, entry.tokens)
        if cause is None or (cause is Cause.ALL_FULL and self._displace(entry)):
            return None
        return Turned(cause, self._retry_after_s(entry.rank))

    def _displace(self, entry: Entry) -> bool:
        """Whether there is a place now, because others of lower classes have given way."""
        waiting, fill = self.waiting, self.classes[entry.rank].fill
        rest = waiting.down_to(entry.rank)
        if not self._settings.displace or not rest.admits(self._settings.total, entry.size, entry.tokens, fill):
            return False
        while not waiting.total.admits(self._settings.total, entry.size, entry.tokens, fill):
            last = waiting.last_below(entry.rank)
            assert last is not None
            waiting.leave(last)
            self._displaced.append(last)
        return True

    def _is_cold(self, entry: Entry, hits: int, now: float) -> bool:
        chain = entry.request.chain
        return bool(chain) and self.gate.refuses(chain, hits, self._view.residence_s(now))

    def _is_hopeless(self, entry: Entry, now: float) -> bool:
        """Whether it would still wait when its time is up, at the pace at which others leave the queue."""
        waiting = self.waiting
        ahead = waiting.ahead(entry)
        own = waiting.of_tenant(entry.rank, entry.tenant).requests
        turns = min(ahead, own * waiting.tenants(entry.rank))
        wait_s = self.pace.gone_s(turns)
        return wait_s is not None and now + wait_s / _DOUBT > min(entry.leave_at, entry.first_token_by)

    def _no_place(self, rank: int, tenant: str | int, size: int, tokens: int) -> Cause | None:
        settings, waiting, own = self._settings, self.waiting, self.classes[rank]
        if not waiting.of_tenant(rank, tenant).admits(settings.tenant, size, tokens):
            return Cause.TENANT_FULL
        if not waiting.by_class[rank].admits(own.bounds, size, tokens):
            return Cause.CLASS_FULL
        return None if waiting.total.admits(settings.total, size, tokens, own.fill) else Cause.ALL_FULL

    def _hit_blocks(self, entry: Entry, decision: Decision | None) -> int:
        """Of its prompt, where it would go or, where that is not known, where most of it is cached."""
        request = entry.request
        if isinstance(decision, Routed):
            return decision.hit_tokens // request.block_tokens
        return int(self._view.hit_blocks(request.chain).max()) if request.chain else 0

    def _latest(self, entry: Entry, decision: Decision | None, hits: int) -> float:
        """When it is too late even for a worker that has nothing else to do and so many blocks of it cached."""
        if not self._view.ready.any():
            return entry.workers_by
        if entry.first_token_by == NEVER:
            return entry.leave_at
        request = entry.request
        if isinstance(decision, Routed):
            work_s = decision.work_s
        else:
            work_s = self._model.prefill_on_one_s(request.prompt_tokens, hits * request.block_tokens)
        return min(entry.leave_at, entry.first_token_by - work_s)

    def _expired(self, entry: Entry, now: float) -> Turned:
        if not self._view.ready.any():
            return Turned(Cause.NO_WORKER_CAME)
        is_due = entry.until >= entry.arrived_at + self.classes[entry.rank].max_wait_s
        return Turned(Cause.TIMEOUT if is_due else Cause.TOO_LATE, self._retry_after_s(entry.rank))

    def _retry_after_s(self, rank: int) -> int:
        ahead = sum(self.waiting.by_class[above].requests for above in range(rank + 1))
        return retry_after_s(self.pace.served_s(ahead), self._chance())

    def _weight(self, tenant: str | int) -> float:
        return self._settings.tenants.get(tenant, 1.0) if isinstance(tenant, str) else 1.0


def _cost(entry: Entry, admitted: Admitted) -> float:
    """Tokens that are computed for it, as far as is known."""
    hit_tokens = (admitted.prefill or admitted.decision).hit_tokens
    return entry.request.prompt_tokens - hit_tokens + entry.request.expected_output_tokens


def ranked(settings: AdmissionSettings) -> list[ClassSettings]:
    """The classes, the highest first: a class' rank is its place here."""
    return sorted(settings.classes, key=lambda each: -each.priority)
