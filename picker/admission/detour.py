"""Where to send a request instead, whose best worker has no room: to one that costs little more and has."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np

from picker.fleet.view import View
from picker.scheduling.decision import Routed
from picker.scheduling.model import WorkerModel

MOST_LOOKED_AT = 16


def detour(
    decision: Routed,
    prompt_tokens: int,
    most_s: float,
    has_room: Callable[[int], bool],
    view: View,
    model: WorkerModel,
) -> Routed | None:
    """The same decision for the cheapest worker with room, if it costs no more than `most_s` above the best; or None.

    Costs are the policy's, so that a conversation leaves its cache only where little of it is lost.
    """
    cost = np.where(decision.eligible, sum(decision.terms.values()), np.inf)
    near = np.flatnonzero(cost <= cost[decision.slots[0]] + most_s)
    order: list[int] = near[np.argsort(cost[near])][:MOST_LOOKED_AT].tolist()
    slot = next((each for each in order if has_room(each)), None)
    if slot is None:
        return None
    slots = (slot, *(each for each in decision.slots if each != slot))[: len(decision.slots)]
    return msgspec.structs.replace(
        decision,
        slots=slots,
        endpoints=tuple(dict.fromkeys(view.facts(each).endpoint for each in slots)),
        hit_tokens=decision.hits.item(slot),
        work_s=model.prefill_on_one_s(prompt_tokens, decision.hits.item(slot)),
        is_detour=slot != decision.slots[0],
    )
