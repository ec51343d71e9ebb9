"""What is known of the workers and of this picker, as the messages of the debug service. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from picker.debug.v1 import debug_pb2 as pb
from picker.fleet.facts import WorkerFacts
from picker.fleet.inflight import Outstanding
from picker.fleet.view import View


@dataclass(frozen=True, slots=True)
class State:
    """What there is to know beside the view; the functions are asked each time."""

    pool: str
    process: str
    verdicts: Callable[[], Mapping[tuple[str, str], float]]
    degraded: Callable[[], Mapping[str, bool]]
    streams: Callable[[], int]
    queues: Callable[[], Mapping[str, tuple[int, float]]]
    """Requests that wait, and seconds for which the oldest has, by class."""


def fleet(view: View, state: State, now: float, at: float) -> pb.Fleet:
    """The whole of it. `now` is on the clock of the view's bookings, `at` is Unix time."""
    books = view.inflight.outstanding(now)
    return pb.Fleet(
        pool=state.pool,
        process=state.process,
        at=at,
        workers=[worker(view, slot, books, now) for slot in sorted(view.slots(), key=lambda s: view.facts(s).worker)],
        verdicts=[
            pb.Verdict(verdict=verdict, reason=reason, count=int(count))
            for (verdict, reason), count in sorted(state.verdicts().items())
        ],
        degraded=sorted(name for name, is_so in state.degraded().items() if is_so),
        streams=state.streams(),
        queues=[
            pb.Queue(name=name, requests=requests, oldest_s=round(oldest_s, 3))
            for name, (requests, oldest_s) in state.queues().items()
        ],
        other_pickers=view.inflight.others.pickers,
    )


def worker(view: View, slot: int, books: Outstanding, now: float) -> pb.Worker:
    """One worker."""
    message = _facts(view.facts(slot))
    passing = view.breakers.passing(now)
    message.is_cordoned = bool(view.cordoned[slot])
    message.is_fresh = bool(view.fresh()[slot])
    message.is_breaker_open = passing is not None and not passing[slot]
    message.beat_age_s = round(float(view.beat_ages_s()[slot]), 3)
    message.running = int(view.running[slot])
    message.waiting = int(view.waiting[slot])
    message.waiting_tokens = int(view.waiting_tokens[slot])
    message.kv_used = float(view.kv_used[slot])
    message.in_flight = int(books.requests[slot])
    message.in_flight_here = int(view.inflight.requests[slot])
    message.prefill_owed_s = round(float(books.prefill_s[slot]), 6)
    message.utilisation = round(float(books.utilisation[slot]), 4)
    message.slowness = round(float(view.inflight.speed()[slot]), 4)
    message.is_index_trusted = view.index.trusts(slot)
    message.index_blocks = view.index.digest(slot)[0]
    if shares := view.reuse.shares([slot], now):
        message.predicted_hit_share = round(shares.predicted, 4)
        message.engine_hit_share = round(shares.reused, 4)
    return message


def _facts(facts: WorkerFacts) -> pb.Worker:
    return pb.Worker(
        worker=facts.worker,
        endpoint=facts.endpoint,
        state=facts.state,
        engine=facts.engine,
        version=facts.version,
        gpu=facts.gpu,
        models=facts.models,
        adapters=len(facts.adapters),
        labels=facts.labels,
        epoch=facts.epoch,
        kv_capacity_tokens=facts.kv_capacity_tokens,
        context_limit_tokens=facts.context_limit_tokens,
        publishes_kv=facts.publishes_kv,
    )
