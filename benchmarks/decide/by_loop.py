"""The default policy's formula worked out for one worker after the other, as a scorer would do it; to compare with."""

from __future__ import annotations

from random import Random

import numpy as np

from picker.fleet.view import View
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies.expected_delay import CROWD, HELD_UP, KAPPA
from picker.scheduling.request import SchedulingRequest


def decide_by_loop(request: SchedulingRequest, view: View, model: WorkerModel, now: float, rng: Random) -> list[int]:
    """The three cheapest slots. Each worker's blocks are counted by bisection, which is what the index allows."""
    costs = []
    utilisation = view.inflight.utilisation(now)
    crowded = HELD_UP * float(np.mean([view.inflight.requests[slot] for slot in view.slots()]))
    for slot in view.slots():
        if not (view.ready[slot] and request.model in view.facts(slot).models):
            continue
        hit = _held(request, view, slot) * request.block_tokens
        idle = 1 - min(0.9, float(utilisation[slot]))
        costs.append((_cost(request, view, model, slot, hit, idle, crowded, now), rng.random(), slot))
    return [slot for _, _, slot in sorted(costs)[:3]]


def _held(request: SchedulingRequest, view: View, slot: int) -> int:
    low, high = 0, len(request.chain)
    while low < high:
        middle = (low + high) // 2
        if view.index.owners(request.chain[middle]) >> slot & 1:
            low = middle + 1
        else:
            high = middle
    return low


def _cost(
    request: SchedulingRequest,
    view: View,
    model: WorkerModel,
    slot: int,
    hit: int,
    idle: float,
    crowded: float,
    now: float,
) -> float:
    books = view.inflight
    speed, owed = float(books.speed()[slot]), float(books.prefill_s[slot])
    work = speed * float(model.prefill_s(request.prompt_tokens, np.array([hit]))[0])
    requests, context = int(books.requests[slot]), int(books.context_tokens[slot])
    step = speed * model.decode_step_s(requests, context)
    age = now - float(books.progress_at[slot]) if owed > 0 else 0.0
    wait = max(speed * owed - age, 0.05 * speed * owed) + 4 * max(age - speed * owed - 1.5, 0) + model.step_s / 2
    one_more = model.one_more_s(request.prompt_tokens)
    output = request.expected_output_tokens
    harm = requests / (requests + CROWD) * (work + output * one_more)
    return wait + work + (KAPPA + crowded) * work + harm + output * step / idle
