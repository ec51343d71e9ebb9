"""What a policy sees."""

from __future__ import annotations

import msgspec

from picker.fleet.inflight import Floats, Outstanding
from picker.fleet.masks import Bools, Ints
from picker.fleet.view import View
from picker.scheduling.model import WorkerModel
from picker.scheduling.request import SchedulingRequest


class Situation(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A request before a fleet. Arrays have the shape (slots,)."""

    request: SchedulingRequest
    view: View
    eligible: Bools
    hit_tokens: Ints
    work_s: Floats
    """Predicted prefill seconds of this request on each worker, at the pool's assumed speed."""
    model: WorkerModel
    now: float
    outstanding: Outstanding
    """What is placed on each worker, by this picker and the others."""
