"""Expected delay: the default policy. Five terms in seconds, least sum wins.

    wait    prefill placed on the worker and not yet done, less the time it has already run
    work    this request's own prefill, at what the worker has cached
    cache   (KAPPA + HELD_UP * mean requests of a worker) * work: recomputing displaces other prompts, and wherever it
            is done it holds up those that decode there
    harm    requests / (requests + CROWD) * (work + output * decode cost of one more request): what those there lose
            by us, the more the likelier it is that one of them has nothing to spare
    decode  our own output at the worker's decode step, stretched by how busy prefill keeps it

Where they apply, three more:

    adapter loading the request's LoRA adapter, where it is not on the worker
    pool    what its profile charges for workers outside the pool that it prefers
    idle    what its profile charges for waking an idle worker

`work + wait` alone is Mooncake's policy and `harm` alone resembles LMetric's product; in simulation on public traces
neither holds as high a rate as the sum. Harm levels off as requests become many: if it grew with their number, long
prompts would avoid busy workers, which then get the short ones, until the workers left to the long ones decode too
slowly; without shared prefixes that cost a tenth of the load that holds at 99 %. That the whole fleet is busy makes
recomputing dearer everywhere alike, so that is in `cache`, by the mean.

All of it comes from the books of this picker and the others: published queue lengths lag, and a lagging signal in an
argmin makes every request run to the same worker.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.masks import Bools, Ints
from picker.scheduling.policies.situation import Situation
from picker.scheduling.profile import labels_of

NAME = "expected-delay"
KAPPA = 1.0
"""Seconds by which other prompts' prefill grows for each second that is spent on something cached elsewhere."""
HELD_UP = 0.2
"""Share of the requests on a worker for which a prefill that goes on there counts as a delay."""
CROWD = 4.0
"""Requests on a worker from which half of the harm is expected that a great many would suffer together."""
LEAST_WAIT = 0.05
"""Share of what a worker owes that is still to be waited for, however long it has been at it."""
_OVERDUE_S = 1.5
_OVERDUE_WEIGHT = 4.0
MOST_UTILISATION = 0.9
"""By prefill; the rest of its time a worker decodes."""


def terms(situation: Situation) -> Mapping[str, Floats]:
    """The five terms, seconds, shape (slots,)."""
    books, model, request = situation.outstanding, situation.model, situation.request
    speed = situation.view.inflight.speed()
    work = speed * situation.work_s
    step = speed * model.decode_step_s(books.requests, books.context_tokens)
    output = request.expected_output_tokens
    idle = 1 - np.minimum(MOST_UTILISATION, books.utilisation)
    one_more = model.one_more_s(request.prompt_tokens)
    return {
        "wait": _wait(situation, speed),
        "work": work,
        "cache": (KAPPA + HELD_UP * _mean(books.requests, situation.eligible)) * work,
        "harm": books.requests / (books.requests + CROWD) * (work + output * one_more),
        "decode": output * step / idle,
        **_placement(situation, books.requests),
    }


def _mean(values: Ints, eligible: Bools) -> float:
    """Of the workers that may serve; 0 where there are none."""
    return float(values @ eligible) / max(1, int(np.count_nonzero(eligible)))


def _placement(situation: Situation, requests: Ints) -> dict[str, Floats]:
    """What it costs to be on the wrong worker, for whatever reason but its load."""
    request, view, profile = situation.request, situation.view, situation.request.profile
    extra: dict[str, Floats] = {}
    if request.adapter:
        extra["adapter"] = np.where(view.with_adapter(request.adapter), 0.0, situation.model.adapter_load_s)
    if profile.prefer:
        masks = [view.labelled(label, values) for label, values in labels_of(profile.prefer)]
        extra["pool"] = np.where(np.logical_and.reduce(masks), 0.0, profile.prefer_s)
    if profile.idle_s:
        extra["idle"] = np.where(requests == 0, profile.idle_s, 0.0)
    return extra


def _wait(situation: Situation, speed: Floats) -> Floats:
    books = situation.outstanding
    owed = speed * books.prefill_s
    age = np.where(books.prefill_s > 0, situation.now - books.progress_at, 0.0)
    left = np.maximum(owed - age, LEAST_WAIT * owed)
    # A worker that should long have given a token is stuck, or other traffic is on it.
    overdue = np.maximum(age - owed - _OVERDUE_S, 0.0)
    waiting: Floats = left + _OVERDUE_WEIGHT * overdue + situation.model.step_s / 2
    return waiting
