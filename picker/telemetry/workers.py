"""What is known of each worker, as lines of Prometheus' text. Made by hand: a thousand workers must not cost a pick."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from picker.fleet.facts import WorkerFacts
from picker.fleet.view import View

Column = Sequence[float]

GAUGES: Mapping[str, str] = {
    "worker_ready": "1 where a worker may be picked: ready, heard of, and not cordoned.",
    "worker_inflight_requests": "Requests that pickers have placed on a worker and not seen end.",
    "worker_running_requests": "Requests that a worker says are running.",
    "worker_waiting_requests": "Requests that a worker says are waiting in its own queue.",
    "worker_kv_used": "Share of a worker's KV cache in use, 0 to 1.",
    "worker_prefill_owed_seconds": "Predicted prefill placed on a worker and not done yet.",
    "worker_slowness": "Observed over predicted prefill time: 2 is half as fast as assumed.",
    "worker_beat_age_seconds": "How long a worker's agent had been silent when Redis was last read.",
}


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers at one moment; a column for each gauge, in the order of `GAUGES`."""

    facts: Sequence[WorkerFacts]
    columns: Sequence[Column]


NOBODY = Workers((), ((),) * len(GAUGES))


def take(view: View, now: float, most: int) -> Workers:
    """The first `most` workers by name. `now` is on the clock of the view's bookings."""
    roster = view.roster()
    slots = sorted(roster, key=lambda slot: roster[slot].worker)[:most]
    if not slots:
        return NOBODY
    books = view.inflight.outstanding(now)
    arrays: tuple[Any, ...] = (
        view.usable() & view.fresh(), books.requests, view.running, view.waiting, view.kv_used,
        books.prefill_s, view.inflight.speed(), view.beat_ages_s(),
    )  # fmt: skip
    return Workers([roster[slot] for slot in slots], [array[slots].tolist() for array in arrays])


def lines(workers: Workers) -> Iterator[str]:
    """The exposition of all of them. The info metric carries what the others are joined with."""
    labels = [f'{{worker="{escape(facts.worker)}"}}' for facts in workers.facts]
    for (name, text), column in zip(GAUGES.items(), workers.columns, strict=True):
        yield f"# HELP picker_{name} {text}\n# TYPE picker_{name} gauge\n"
        yield "".join(f"picker_{name}{label} {float(value)}\n" for label, value in zip(labels, column, strict=True))
    yield "# HELP picker_worker_info What a worker is; always 1.\n# TYPE picker_worker_info gauge\n"
    yield "".join(map(_info, workers.facts))


def _info(facts: WorkerFacts) -> str:
    labels = {
        "worker": facts.worker, "endpoint": facts.endpoint, "model": facts.models[0] if facts.models else "",
        "engine": facts.engine, "version": facts.version, "gpu": facts.gpu, "state": str(facts.state),
    }  # fmt: skip
    told = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    return f"picker_worker_info{{{told}}} 1.0\n"


def escape(value: str) -> str:
    """As it may stand in a label's value."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
