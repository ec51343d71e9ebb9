"""Who is there: from fields of the load HASH to workers in the view; without I/O.

A field becomes a worker once its record has been looked up and fits. Anybody can write fields, so those without a
worker cost little: they take no worker's place, are looked up ever more rarely, and are forgotten as soon as the HASH
does not list them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import structlog

from picker.fleet.endpoints import canonical, is_reachable
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.fence import Fence
from picker.fleet.fences import Fences
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.redisview.reader import Registration
from picker.redisview.records import Foreign, LoadRecord, WorkerRecord

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class Member:
    """A field of the load HASH. `known`: epoch and facts of the worker's record as the view has it.

    `retry_at`: when its record may be looked up, after so many `attempts`.
    """

    worker: str
    seen_at: float
    moved_at: float
    retry_at: float
    attempts: int = 0
    cycle: int = 0
    packed: bytes | None = None
    load: LoadRecord | None = None
    is_changed: bool = False
    known: tuple[int, int] | None = None
    slot: int | None = None


class Members:
    """The fields of the load HASH, those with a worker in the view and the others. Times are time watched, in seconds.

    A poll is: `note`, `unregistered`, `take` for each of these, `update_view`, `retire_missing`, `retire_stalled`.
    """

    def __init__(self, view: View, fences: Fences, tally: Tally, settings: FeedSettings):
        self._view = view
        self._fences = fences
        self._tally = tally
        self._settings = settings
        self._members: dict[str, Member] = {}
        self._workers: dict[str, Member] = {}
        self._cycle = 0
        self._ends_cycle = True
        self._listed: list[Member] = []
        self._is_full = False

    def __repr__(self) -> str:
        return f"<Members {len(self._members)}, {self.admitted} admitted>"

    @property
    def admitted(self) -> int:
        """Workers in the view, at most `max_workers`."""
        return len(self._workers)

    def workers(self) -> list[str]:
        """The names of the workers in the view."""
        return list(self._workers)

    def note(self, packed: Mapping[str, bytes], now: float, ends_cycle: bool = True) -> None:
        """The load HASH as it is now: the workers' fields and others. `ends_cycle`: now all others have been shown."""
        noted = (self._noted(worker, data, now) for worker, data in packed.items())
        self._listed = [member for member in noted if member is not None]
        self._ends_cycle = ends_cycle

    def unregistered(self, now: float) -> list[Member]:
        """The members whose record is to be looked up now, because the view does not have it as the load counts it."""
        return [member for member in self._listed if self._is_unregistered(member, now) and self._may_try(member, now)]

    def take(self, member: Member, registration: Registration | Foreign | None, now: float) -> None:
        """What a look-up has found: admits the worker, or updates its facts, if they fit its load."""
        if registration is None:
            return
        record = None if isinstance(registration, Foreign) else self._with_canonical_endpoint(registration.record)
        if isinstance(registration, Foreign):
            self._tally.foreign += 1
        elif record is None:
            self._refuse_endpoint(member, registration)
        # Another epoch in the load record is that of an agent that was replaced and does not know it yet.
        elif member.load is not None and record.epoch == member.load.epoch and self._has_room(member):
            self._admit(member, record, now)
            member.known = (record.epoch, registration.facts)

    def update_view(self, now: float) -> None:
        """Passes on the loads of all workers that are listed."""
        for member in self._listed:
            if member.slot is not None and member.load is not None and _epoch(member) == member.load.epoch:
                self._view.update_load(member.slot, member.load, now)

    def fenced(self, only_changed: bool = False) -> Iterator[tuple[Fence, LoadRecord]]:
        """Workers that publish what they hold, with their loads; `only_changed`: that are listed with a new load."""
        members: Iterable[Member] = self._listed if only_changed else self._workers.values()
        for member in members:
            if member.load is not None and (member.is_changed or not only_changed):
                fence = self._fences.get(member.worker, member.load.epoch)
                if fence is not None:
                    yield fence, member.load

    def retire_missing(self, now: float) -> None:
        """Lets go of what is not listed any more: workers after a grace, everything else at once."""
        for member in list(self._workers.values()):
            if now - member.seen_at > self._settings.missing_grace_s:
                self._retire(member)
                del self._members[member.worker]
        if self._ends_cycle:
            unseen = [each for each in self._members.values() if each.slot is None and each.cycle != self._cycle]
            for member in unseen:
                del self._members[member.worker]
            self._cycle += 1

    def retire_stalled(self, now: float) -> list[Member]:
        """Retires workers whose beat stands still. The members to be removed from Redis now, if they have no record."""
        stalled = [member for member in self._listed if self._is_stalled(member, now)]
        for member in stalled:
            self._retire(member)
        return [member for member in stalled if member.load is not None and self._may_try(member, now)]

    def _noted(self, worker: str, data: bytes, now: float) -> Member | None:
        member = self._members.get(worker)
        if member is None:
            if len(self._members) >= self._settings.max_fields:
                return None
            member = self._members[worker] = Member(worker, seen_at=now, moved_at=now, retry_at=now)
        member.seen_at, member.cycle = now, self._cycle
        member.is_changed = data != member.packed
        if member.is_changed:
            member.packed = data
            self._note_load(member, data, now)
        return member

    def _note_load(self, member: Member, data: bytes, now: float) -> None:
        try:
            load = LoadRecord.unpack(data)
        except Foreign:
            self._tally.foreign += 1
            return
        old, is_stalled = member.load, self._is_stalled(member, now)
        member.load = load
        if old is None or (load.epoch, load.beat) != (old.epoch, old.beat):
            member.moved_at = now
        if old is None or (load.epoch, load.facts) != (old.epoch, old.facts) or is_stalled:
            member.retry_at, member.attempts = now, 0

    def _is_stalled(self, member: Member, now: float) -> bool:
        return now - member.moved_at > self._settings.retire_after_s

    def _is_unregistered(self, member: Member, now: float) -> bool:
        load = member.load
        return load is not None and member.known != (load.epoch, load.facts) and not self._is_stalled(member, now)

    def _may_try(self, member: Member, now: float) -> bool:
        """Whether it may be looked up now; if so, the next time is put off."""
        if member.retry_at > now:
            return False
        first_s, longest_s = self._settings.first_lookup_retry_s, self._settings.longest_lookup_retry_s
        member.retry_at = now + min(first_s * 2.0 ** min(member.attempts, 32), longest_s)
        member.attempts += 1
        return True

    def _has_room(self, member: Member) -> bool:
        is_full = member.slot is None and self.admitted >= self._settings.max_workers
        if is_full and not self._is_full:
            self._is_full = True
            _log.error("too_many_workers", limit=self._settings.max_workers, consequence="the rest is not picked")
        return not is_full

    def _admit(self, member: Member, record: WorkerRecord, now: float) -> None:
        slot = self._view.slot_of(record.worker, record.epoch)
        if slot is None:
            self._drop_fence(member)
            slot = self._view.admit(record, now)
        else:
            self._view.update_facts(slot, record)
        self._workers[member.worker] = member
        member.slot = slot
        if record.publishes_kv and self._fences.get(record.worker, record.epoch) is None:
            self._fences.add(Fence(record.worker, record.epoch, slot, self._settings.fence))

    def _with_canonical_endpoint(self, record: WorkerRecord) -> WorkerRecord | None:
        endpoint = canonical(record.endpoint)
        if endpoint is None or not endpoint.rpartition(":")[2].isdecimal():
            return None
        if not is_reachable(endpoint, self._settings.networks):
            return None
        return msgspec.structs.replace(record, endpoint=endpoint)

    def _refuse_endpoint(self, member: Member, registration: Registration) -> None:
        """It would stand in a header as it is: Envoy ignores a name, takes a comma for another endpoint."""
        self._tally.foreign += 1
        self._retire(member)
        # Known, so that it is not looked up again before it changes.
        member.known = (registration.record.epoch, registration.facts)
        advice = "it must be ip:port, IPv6 in brackets, in one of worker_networks where they are set"
        _log.error("worker_endpoint_unusable", worker=member.worker, advice=advice)

    def _retire(self, member: Member) -> None:
        if member.slot is not None:
            self._drop_fence(member)
            self._view.retire(member.slot)
            del self._workers[member.worker]
            self._is_full = False
            member.retry_at = member.attempts = 0
            _log.info("worker_retired", worker=member.worker)
        member.slot = member.known = None

    def _drop_fence(self, member: Member) -> None:
        self._fences.drop(member.worker, _epoch(member))


def _epoch(member: Member) -> int:
    return member.known[0] if member.known else -1
