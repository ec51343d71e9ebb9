"""The decision: who may serve, what each would cost, who is chosen, who comes next. Pure.

The server, the simulator and every tool call this one function. It reads no clock and draws no randomness of its own:
the same arguments give the same decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.view import View
from picker.scheduling.decision import Decision, Refused, Routed
from picker.scheduling.eligibility import eligible
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import Policy
from picker.scheduling.policies.situation import Situation
from picker.scheduling.request import SchedulingRequest

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - the type only

FALLBACKS = 2
"""Endpoints after the first: as many as the shipped Envoy configurations retry."""


def decide(
    request: SchedulingRequest,
    view: View,
    policy: Policy,
    model: WorkerModel,
    now: float,
    rng: Random,
    fallbacks: int = FALLBACKS,
) -> Decision:
    """Where this request should go. `now` is on the clock of the view's bookings, in seconds.

    `fallbacks` is how many endpoints to name after the first.
    """
    candidates = eligible(request, view)
    if isinstance(candidates, Refused):
        return candidates
    hits = view.hit_blocks(request.chain) * request.block_tokens
    work = model.prefill_s(request.prompt_tokens, hits)
    situation = Situation(request, view, candidates, hits, work, model, now, view.inflight.outstanding(now))
    terms = policy.terms(situation)
    cost = np.where(candidates, sum(terms.values()), np.inf)
    order = _cheapest(cost, min(1 + fallbacks, int(np.count_nonzero(candidates))), rng)
    winner = order[0]
    return Routed(
        slots=order,
        endpoints=tuple(dict.fromkeys(view.facts(slot).endpoint for slot in order)),
        hit_tokens=int(hits[winner]),
        work_s=float(work[winner]),
        policy=policy.name,
        terms=terms,
    )


def _cheapest(cost: Floats, count: int, rng: Random) -> tuple[int, ...]:
    """The slots of least cost, cheapest first, equals in random order: else the first worker gets every cold start."""
    first = np.flatnonzero(cost == cost.min())
    if len(first) >= count:  # an idle fleet: nobody is cheaper
        return tuple(first.item(index) for index in rng.sample(range(len(first)), count))
    near: list[int] = np.argpartition(cost, count - 1)[:count].tolist()
    bound = max(map(cost.item, near))
    equal = np.flatnonzero(cost == bound)
    if len(equal) > 1:  # perhaps more equals at the bound than there is room for
        below = [slot for slot in near if cost[slot] < bound]
        near = below + rng.sample(equal.tolist(), count - len(below))
    return tuple(sorted(near, key=lambda slot: (cost.item(slot), rng.random())))
