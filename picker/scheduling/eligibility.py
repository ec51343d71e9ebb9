"""Who may serve a request at all. Each rule names itself when it rules a worker out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from picker.fleet.view import Bools, View
from picker.scheduling.decision import Reason, Refused
from picker.scheduling.request import SchedulingRequest

Rule = Callable[[SchedulingRequest, View], Bools | None]
"""The slots that pass, or None where the rule does not apply."""


def _serves_model(request: SchedulingRequest, view: View) -> Bools | None:
    return None if request.model is None else view.serving(request.model)


def _is_ready(request: SchedulingRequest, view: View) -> Bools:
    return view.ready


def _is_fresh(request: SchedulingRequest, view: View) -> Bools:
    return view.fresh()


def _in_subset(request: SchedulingRequest, view: View) -> Bools | None:
    return None if request.subset is None else view.within(request.subset)


RULES: tuple[tuple[Reason, str, Rule], ...] = (
    # The model comes first: "there is no such model" must not depend on who happens to be ready.
    (Reason.UNKNOWN_MODEL, "model", _serves_model),
    (Reason.NOT_READY, "state", _is_ready),
    (Reason.NOT_READY, "stale", _is_fresh),
    (Reason.SUBSET, "subset", _in_subset),
)
"""In this order. The reason is the refusal's where this rule is the one that leaves nobody."""


def eligible(request: SchedulingRequest, view: View) -> Bools | Refused:
    """The slots that may serve this request, shape (slots,), or why there is none."""
    left = view.known
    for _, _, rule in RULES:
        passed = rule(request, view)
        if passed is not None:
            left = left & passed
    if not left.any():
        return _refusal(request, view)
    if not request.avoid:
        return left
    others = left & ~view.within(request.avoid)
    return others if others.any() else left


def _refusal(request: SchedulingRequest, view: View) -> Refused:
    """The rule that left nobody, and how many workers each one ruled out up to there."""
    left = view.known
    excluded: dict[str, int] = {}
    for reason, name, rule in RULES:
        passed = rule(request, view)
        if passed is None or not left.any():
            continue
        before, left = left, left & passed
        excluded[name] = int(np.count_nonzero(before & ~passed))
        if not left.any():
            return Refused(_in_time(reason, view), excluded)
    return Refused(Reason.NO_WORKERS)


def _in_time(reason: Reason, view: View) -> Reason:
    """Workers that are still loading do not say what they will serve; clients do not ask again after "unknown"."""
    return Reason.NOT_READY if reason is Reason.UNKNOWN_MODEL and view.unnamed().any() else reason
