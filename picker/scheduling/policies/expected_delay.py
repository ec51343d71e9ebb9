"""Expected delay: the default policy. Five terms in seconds, least sum wins.

    wait    prefill placed on the worker and not yet done, less the time it has already run
    work    this request's own prefill, at what the worker has cached
    cache   KAPPA * work: recomputing displaces other prompts from the cache
    harm    ALPHA * requests there * (stall + BETA * output * decode cost of one more request): what they lose by us,
            where stall is work if it takes seconds, and less of it if it takes less than one
    decode  BETA * our own output at the worker's decode step, stretched by how busy prefill keeps it

Where they apply, three more:

    adapter loading the request's LoRA adapter, where it is not on the worker
    pool    what its profile charges for workers outside the pool that it prefers
    idle    what its profile charges for waking an idle worker

`work + wait` alone is Mooncake's policy and `harm` alone resembles LMetric's product; in simulation on public traces
neither holds as high a rate as the sum. All of it comes from the books of this picker and the others: published queue
lengths lag, and a lagging signal in an argmin makes every request run to the same worker.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from picker.fleet.inflight import Floats
from picker.fleet.masks import Ints
from picker.scheduling.policies.situation import Situation
from picker.scheduling.profile import labels_of

NAME = "expected-delay"
ALPHA = 0.1
BETA = 0.5
KAPPA = 2.0
_NOTICED_S = 1.0
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
    stretch = 1 - np.minimum(MOST_UTILISATION, books.utilisation)
    one_more = model.one_more_s(request.prompt_tokens)
    return {
        "wait": _wait(situation, speed),
        "work": work,
        "cache": KAPPA * work,
        "harm": ALPHA * books.requests * (_stall(work) + BETA * output * one_more),
        "decode": BETA * output * step / stretch,
        **_placement(situation, books.requests),
    }


def _stall(work: Floats) -> Floats:
    """How much of a prefill the requests there notice: little of one that is hidden between two of their tokens.

    If short prefills counted in full, small prompts would gather on the workers that large ones avoid for having many
    requests: without shared prefixes that cost a tenth of the load that holds at 99 %.
    """
    noticed: Floats = work * work / (work + _NOTICED_S)
    return noticed


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
