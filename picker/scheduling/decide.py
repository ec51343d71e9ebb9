"""The decision: who may serve, what each would cost, who is chosen, who comes next. Pure.

The server, the simulator and every tool call this one function. It reads no clock and draws no randomness of its own:
the same arguments give the same decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.masks import Ints
from picker.fleet.view import View
from picker.scheduling.decision import Decision, Refused, Routed, Step
from picker.scheduling.eligibility import eligible
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import Policy, Terms
from picker.scheduling.policies.situation import Situation
from picker.scheduling.profile import Profile
from picker.scheduling.request import SchedulingRequest

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - the type only

_NOTHING = np.zeros(())
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
    steps: list[Step] = []
    candidates = eligible(request, view, now, steps)
    if isinstance(candidates, Refused):
        return candidates
    hits = view.hit_blocks(request.chain) * request.block_tokens
    work = model.prefill_s(request.prompt_tokens, hits)
    situation = Situation(request, view, candidates, hits, work, model, now, view.inflight.outstanding(now))
    terms = _weighted(policy.terms(situation), request.profile.weights)
    cost: Floats = sum(terms.values(), _NOTHING)
    cost[~candidates] = np.inf
    order = _in_order(cost, view.domains, min(1 + fallbacks, int(np.count_nonzero(candidates))), rng)
    winner = order[0]
    return Routed(
        slots=order,
        endpoints=tuple(dict.fromkeys(view.facts(slot).endpoint for slot in order)),
        hit_tokens=int(hits[winner]),
        work_s=float(work[winner]),
        policy=policy.name,
        terms=terms,
        hits=hits,
        known=view.known,
        steps=tuple(steps),
    )


def term_names(policy: Policy) -> frozenset[str]:
    """The names of all terms that a policy's cost may have, which are those that weights go by."""
    request = SchedulingRequest(0, adapter="any", profile=Profile(prefer={"any": ()}, idle_s=1.0))
    view, model = View(capacity=1), WorkerModel()
    nothing = np.zeros(1, np.int64)
    outstanding = view.inflight.outstanding(0.0)
    situation = Situation(request, view, view.known, nothing, nothing.astype(float), model, 0.0, outstanding)
    return frozenset(policy.terms(situation))


def _weighted(terms: Terms, weights: Mapping[str, float]) -> Terms:
    return {name: weights.get(name, 1.0) * values for name, values in terms.items()} if weights else terms


def _in_order(cost: Floats, domains: Ints, count: int, rng: Random) -> tuple[int, ...]:
    """The cheapest slot, then the fallbacks: those of other failure domains first, the cheaper ones first."""
    order = _cheapest(cost, count, rng)
    winner = order[0]
    if count == 1 or not domains[winner] or all(domains[slot] != domains[winner] for slot in order[1:]):
        return order
    elsewhere = np.where(domains == domains[winner], np.inf, cost)
    others = _cheapest(elsewhere, min(count - 1, int(np.count_nonzero(np.isfinite(elsewhere)))), rng)
    return tuple(dict.fromkeys((winner, *others, *order[1:])))[:count]


def _cheapest(cost: Floats, count: int, rng: Random) -> tuple[int, ...]:
    """The slots of least cost, cheapest first, equals in random order: else the first worker gets every cold start."""
    left, order = cost.copy(), []
    for _ in range(count):
        equals = (left == left.item(left.argmin())).nonzero()[0]
        slot: int = equals.item(rng.randrange(len(equals)) if len(equals) > 1 else 0)
        order.append(slot)
        left[slot] = np.inf
    return tuple(order)
