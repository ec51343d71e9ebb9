"""What a platform is told: workers, models, and the picker that says it. Pure.

All pickers of a pool see the same workers and the same demand: whoever has written last speaks for the pool.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from picker.fleet.facts import WorkerFacts
from picker.fleet.view import View
from picker.scaling.residency import Residency
from picker.scaling.signals import Signal


class WorkerState(msgspec.Struct, frozen=True, kw_only=True):
    """One worker.

    endpoint: ip:port.
    state: as its agent says: loading, ready, draining, unhealthy.
    is_usable: whether it may be picked: ready, heard of, in the pool and not cordoned.
    is_cordoned: by an operator or by orders.
    models: that it serves.
    in_flight: requests that pickers have there.
    running, waiting: requests, as the engine counts.
    kv_used: share of its KV cache, 0 to 1.
    prefill_owed_s: seconds of prefill that it was sent and has not done.
    """

    endpoint: str
    state: str
    is_usable: bool
    is_cordoned: bool
    models: tuple[str, ...]
    in_flight: int
    running: int
    waiting: int
    kv_used: float
    prefill_owed_s: float


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model or adapter. For an adapter there is only `needed`, `resident` and `preload`.

    needed: workers on which it should be loaded; of a model, the workers to ask for.
    resident: workers on which it is.
    preload: workers on which it should be loaded besides.
    requests_per_s, tokens_per_s: that come.
    waiting: requests that wait for a worker with room.
    saturation: share of its workers' time that prefill fills, 0 to 1.
    """

    needed: int
    resident: int
    preload: int
    requests_per_s: float = 0.0
    tokens_per_s: float = 0.0
    waiting: int = 0
    saturation: float = 0.0


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """Which orders this picker follows.

    revision: of the last orders that were good.
    error: why the last ones were refused; "" where they were not.
    """

    revision: str = ""
    error: str = ""


class PickerState(msgspec.Struct, frozen=True, kw_only=True):
    """The picker that says all this.

    process: its name.
    at: Unix time.
    pickers: of the pool, itself included.
    degraded: what does not work as it should, as in `picker_degraded`.
    orders: which orders it follows.
    """

    process: str
    at: float
    pickers: int
    degraded: tuple[str, ...]
    orders: Followed


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A pool at one moment. In Redis each section is a field of the HASH.

    picker: who says it.
    workers: by name.
    models: models and adapters, by name.
    """

    picker: PickerState
    workers: dict[str, WorkerState]
    models: dict[str, ModelState]


def workers(view: View, now: float) -> dict[str, WorkerState]:
    """All workers of a view. `now` is on the clock of its bookings."""
    books = view.inflight.outstanding(now)
    columns = (view.usable() & view.fresh(), view.cordoned, books.requests, view.running, view.waiting, view.kv_used)
    rows = list(zip(*(column.tolist() for column in (*columns, books.prefill_s)), strict=True))
    return {facts.worker: _worker(facts, *rows[slot]) for slot, facts in view.roster().items()}


def _worker(
    facts: WorkerFacts, usable: bool, cordoned: bool, sent: int, running: int, waiting: int, kv: float, owed_s: float
) -> WorkerState:
    return WorkerState(
        endpoint=facts.endpoint,
        state=str(facts.state),
        is_usable=usable,
        is_cordoned=cordoned,
        models=tuple(facts.models),
        in_flight=sent,
        running=running,
        waiting=waiting,
        kv_used=round(kv, 4),
        prefill_owed_s=round(owed_s, 3),
    )


def models(signals: Mapping[str, Signal], residencies: Mapping[str, Residency]) -> dict[str, ModelState]:
    """All models and adapters of which anything is known."""
    return {name: _model(signals.get(name), each) for name, each in residencies.items()}


def _model(signal: Signal | None, residency: Residency) -> ModelState:
    loaded = ModelState(needed=residency.needed, resident=residency.resident, preload=residency.preload)
    if signal is None:
        return loaded
    return msgspec.structs.replace(
        loaded,
        requests_per_s=round(signal.requests_per_s, 3),
        tokens_per_s=round(signal.tokens_per_s, 1),
        waiting=signal.waiting.requests,
        saturation=round(signal.saturation, 4),
    )
