"""Who may serve a request at all. Each rule names itself when it rules a worker out.

Rules come in two kinds. What a worker cannot or may not do rules it out, whatever follows from it. What it had better
not do (a request has just failed there, its breaker is open, the whole answer may not fit) rules it out only where
others are left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from picker.fleet.masks import Bools
from picker.fleet.view import View
from picker.scheduling.decision import Reason, Refused, Step, ruled_out
from picker.scheduling.profile import labels_of
from picker.scheduling.request import SchedulingRequest

Rule = Callable[[SchedulingRequest, View, float], Bools | None]
"""The slots that pass at a time, or None where the rule does not apply."""


def _serves_model(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return None if request.model is None else view.serving(request.model)


def _meets_requirements(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    if not request.profile.require and not request.require:
        return None
    labels = (*labels_of(request.profile.require), *labels_of(request.require))
    return _all([view.labelled(label, values) for label, values in labels])


def _has_role(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return None if request.role is None else ~view.labelled(request.role.label, request.role.values)


def _fits_prompt(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    # An estimate is no reason to refuse: the engine counts better.
    if not request.exact or request.prompt_tokens < view.least_tokens():
        return None
    return view.most_tokens > request.prompt_tokens


def _is_ready(request: SchedulingRequest, view: View, now: float) -> Bools:
    return view.ready


def _is_not_cordoned(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return ~view.cordoned if view.cordons else None


def _is_in_pool(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return None if view.members is None else ~view.outside


def _is_fresh(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return None if view.all_fresh() else view.fresh()


def _in_subset(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return None if request.subset is None else view.within(request.subset)


def _has_room(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    limits = request.profile.limits
    if not limits.any:
        return None
    books = view.inflight.outstanding(now)
    found = (books.requests, books.context_tokens, view.waiting, view.kv_used)
    wanted = (limits.running, limits.tokens, limits.waiting, limits.kv_used)
    return _all([value < limit for value, limit in zip(found, wanted, strict=True) if limit is not None])


def _all(masks: list[Bools]) -> Bools | None:
    return np.logical_and.reduce(masks) if masks else None


RULES: tuple[tuple[Reason, str, Rule], ...] = (
    # What cannot change comes first: "there is no such model" must not depend on who happens to be ready.
    (Reason.UNKNOWN_MODEL, "model", _serves_model),
    (Reason.REQUIREMENTS, "requirements", _meets_requirements),
    (Reason.NOT_READY, "role", _has_role),
    (Reason.TOO_LONG, "context", _fits_prompt),
    (Reason.NOT_READY, "state", _is_ready),
    (Reason.NOT_READY, "cordoned", _is_not_cordoned),
    (Reason.NOT_READY, "pool", _is_in_pool),
    (Reason.SUBSET, "subset", _in_subset),
    (Reason.FULL, "limits", _has_room),
)
"""In this order. The reason is the refusal's where this rule is the one that leaves nobody."""

_REASONS = {name: reason for reason, name, _ in RULES}


def _has_not_failed(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return ~view.within(request.avoid) if request.avoid else None


def _passes_breaker(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    return view.breakers.passing(now)


def _fits_answer(request: SchedulingRequest, view: View, now: float) -> Bools | None:
    wanted = request.prompt_tokens + request.wanted_output_tokens
    if not request.wanted_output_tokens or wanted <= view.least_tokens():
        return None
    return view.most_tokens >= wanted


PREFERENCES: tuple[tuple[str, Rule], ...] = (
    # Agents that fall silent all at once say more of the way to them than of the workers.
    ("stale", _is_fresh),
    ("failed-before", _has_not_failed),
    ("breaker", _passes_breaker),
    ("answer", _fits_answer),
)
"""In this order; one that would leave nobody is passed over."""


def eligible(request: SchedulingRequest, view: View, now: float, steps: list[Step] | None = None) -> Bools | Refused:
    """The slots that may serve this request, shape (slots,), or why there is none.

    `steps` is told whom each rule has left: who was ruled out by what can be worked out later, if anybody asks.
    """
    left = view.known
    steps = [] if steps is None else steps
    for _, name, rule in RULES:
        passed = rule(request, view, now)
        if passed is not None:
            left = left & passed
            steps.append((name, left))
    if not np.count_nonzero(left):
        return _refusal(view, steps)
    for name, rule in PREFERENCES:
        passed = rule(request, view, now)
        if passed is not None and np.count_nonzero(rest := left & passed):
            left = rest
            steps.append((name, left))
    return left


def _refusal(view: View, steps: Sequence[Step]) -> Refused:
    """The reason is that of the rule that left nobody: the last one that ruled anybody out."""
    excluded = {name: int(np.count_nonzero(out)) for name, out in ruled_out(view.known, steps)}
    if not excluded:
        return Refused(Reason.NO_WORKERS)
    return Refused(_in_time(_REASONS[[*excluded][-1]], view), excluded, view.known, steps)


def _in_time(reason: Reason, view: View) -> Reason:
    """Workers that are still loading do not say what they will serve; clients do not ask again after "unknown"."""
    return Reason.NOT_READY if reason is Reason.UNKNOWN_MODEL and view.unnamed().any() else reason
