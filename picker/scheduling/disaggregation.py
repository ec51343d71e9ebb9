"""Disaggregated serving: one worker prefills, another decodes; which two, and whether the hop is worth it.

The decode worker is the one that the proxy sends the request to. Where the hop is worth it, the prefill worker is named
in the header `x-prefiller-host-port`, and the sidecar beside the decode worker has the prompt computed there first
(https://github.com/llm-d/llm-d-router, docs/disaggregation.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from picker.fleet.view import View
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision, Refused, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import Policy
from picker.scheduling.request import OtherRole, SchedulingRequest

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - the type only


class Disaggregation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which workers do what, by a label. Workers without the label do both.

    label: the label that says it.
    prefill, decode: its values for workers that do one of both alone.
    min_new_tokens: what the decode worker does not hold of a prompt must be at least so much for the hop; below that it
    prefills itself.
    """

    label: str = "llm-d.ai/role"
    prefill: tuple[str, ...] = ("prefill",)
    decode: tuple[str, ...] = ("decode",)
    min_new_tokens: int = 2048


def decide_stages(
    request: SchedulingRequest,
    roles: Disaggregation,
    view: View,
    policy: Policy,
    model: WorkerModel,
    now: float,
    rng: Random,
    fallbacks: int,
) -> tuple[Decision, Routed | None]:
    """Where the request goes, and where its prompt is computed first; None where that is the same worker.

    The decode worker comes first, by the full cost: a prompt it holds needs no second worker.
    """
    as_decode = msgspec.structs.replace(request, role=OtherRole(roles.label, frozenset(roles.prefill)))
    decode = decide(as_decode, view, policy, model, now, rng, fallbacks)
    if isinstance(decode, Refused) or request.prompt_tokens - decode.hit_tokens < roles.min_new_tokens:
        return decode, None
    as_prefill = msgspec.structs.replace(
        request,
        role=OtherRole(roles.label, frozenset(roles.decode)),
        expected_output_tokens=0,
        wanted_output_tokens=0,
        # The proxy chooses where the request goes; where the prompt is computed is between workers.
        subset=None,
    )
    prefill = decide(as_prefill, view, policy, model, now, rng, 0)
    if isinstance(prefill, Refused) or prefill.slots[0] == decode.slots[0]:
        return decode, None
    return msgspec.structs.replace(decode, work_s=0.0), prefill
