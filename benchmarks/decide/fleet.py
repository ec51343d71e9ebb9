"""A busy fleet, and a long prompt of which its workers hold more or less."""

from __future__ import annotations

from random import Random

from picker.fleet.view import View
from picker.redisview.records import WorkerRecord, WorkerState
from picker.scheduling.request import SchedulingRequest

PROMPT_BLOCKS = 2048
_BOOKINGS_EACH = 8
_MODEL = "model"

SPREADS = {
    "by nobody": 0,
    "by all, equally": 1,
    "to 8 depths": 8,
    "to 64 depths": 64,
}
"""How many distinct lengths of the prompt's beginning workers hold."""


def prompt() -> SchedulingRequest:
    """131,072 tokens."""
    return SchedulingRequest(
        0,
        _MODEL,
        prompt_tokens=PROMPT_BLOCKS * 64,
        expected_output_tokens=256,
        chain=_chain(),
    )


def busy_fleet(workers: int, depths: int, seed: int = 0) -> View:
    """So many workers with eight requests each."""
    view, rng, chain = View(capacity=workers), Random(seed), _chain()
    for number in range(workers):
        slot = view.admit(_record(number), now=0.0)
        view.index.trust(slot, True)
        if depths:
            view.index.store(slot, chain[: PROMPT_BLOCKS * (1 + number % depths) // depths])
        for _ in range(_BOOKINGS_EACH):
            view.place(slot, [rng.getrandbits(64)], True, rng.random(), rng.randrange(100, 8000), now=rng.random())
    return view


def _chain() -> list[int]:
    rng = Random(1)
    return [rng.getrandbits(64) for _ in range(PROMPT_BLOCKS)]


def _record(number: int) -> WorkerRecord:
    endpoint = f"10.0.{number // 250}.{number % 250 + 1}:8000"
    return WorkerRecord(worker=endpoint, epoch=number, endpoint=endpoint, state=WorkerState.READY, models=(_MODEL,))
