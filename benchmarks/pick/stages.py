"""Timers around the stages of a pick: what each takes without the stages inside it."""

from __future__ import annotations

import functools
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

STAGES: dict[str, tuple[str, ...]] = {
    "transport: frames, windows, writes": ("picker.transport.protocol:GrpcProtocol.data_received",),
    "ext_proc: messages read": ("picker.extproc.direct:parse",),
    "ext_proc: conversation": (
        "picker.extproc.service:ExtProcService.open",
        "picker.extproc.direct:DirectStream.message",
        "picker.extproc.direct:DirectStream.half_closed",
        "picker.extproc.direct:DirectStream.ended",
    ),
    "ext_proc: answers written": ("picker.extproc.direct:build",),
    "read: JSON, terms": ("picker.picking:read_request",),
    "chain: the prompt's hashes": ("picker.prompts.reader:PromptReader.read",),
    "admission": ("picker.admitting:Admitting.admit",),
    "eligibility": ("picker.scheduling.decide:eligible",),
    "hits: look-up in the index": ("picker.fleet.view:View.hit_blocks",),
    "cost, and what it is of": ("picker.placing:Placer.about", "picker.placing:Placer.decide"),
    "choice": ("picker.scheduling.decide:_in_order",),
    "book": ("picker.placing:Placer.book",),
    "release": ("picker.placing:Placer.answered", "picker.placing:Placer.release"),
    "metrics": (
        "picker.telemetry.metrics:Metrics.routed",
        "picker.telemetry.decisions:DecisionMetrics._decided",
        "picker.telemetry.decisions:DecisionMetrics._end",
        "prometheus_client:Histogram.observe",
    ),
    "events": (
        "picker.observing:Observer.routed",
        "picker.observing:Observer.first_byte",
        "picker.observing:Observer.released",
    ),
    "picking: what holds it together": (
        "picker.picking:Picker.pick",
        "picker.picking:Picker.turn_away",
        "picker.picking:Picker.first_byte",
        "picker.picking:Picker.release",
    ),
}
"""The functions of each stage, by the names under which they are called."""


class Timers:
    """Nested timers. `spent_ns` and `calls` are since the last `take`."""

    def __init__(self) -> None:
        self._inside: list[int] = [0]
        self.spent_ns: dict[str, int] = defaultdict(int)
        self.calls: dict[str, int] = defaultdict(int)

    def take(self) -> tuple[dict[str, int], dict[str, int]]:
        """Nanoseconds without what was inside, and calls, by stage; begins anew."""
        found = dict(self.spent_ns), dict(self.calls)
        self.spent_ns.clear()
        self.calls.clear()
        return found

    def wrapped(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with a timer around it. A coroutine must not wait."""

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            started = self._begin()
            try:
                return function(*arguments, **named)
            finally:
                self._end(stage, started)

        @functools.wraps(function)
        async def timed_coroutine(*arguments: Any, **named: Any) -> Any:
            started = self._begin()
            try:
                return await function(*arguments, **named)
            finally:
                self._end(stage, started)

        return timed_coroutine if inspect.iscoroutinefunction(function) else timed

    def _begin(self) -> int:
        self._inside.append(0)
        return time.perf_counter_ns()

    def _end(self, stage: str, started: int) -> None:
        whole = time.perf_counter_ns() - started
        self.spent_ns[stage] += whole - self._inside.pop()
        self.calls[stage] += 1
        self._inside[-1] += whole


@contextmanager
def timed(timers: Timers) -> Iterator[None]:
    """With timers around all stages. To be entered before what is timed is built: it keeps references to methods."""
    before = []
    try:
        for stage, names in STAGES.items():
            for owner, name in map(_place, names):
                before.append((owner, name, vars(owner)[name]))
                setattr(owner, name, timers.wrapped(stage, vars(owner)[name]))
        yield
    finally:
        for owner, name, function in reversed(before):
            setattr(owner, name, function)


def _place(path: str) -> tuple[Any, str]:
    """What holds a function, and its name there. Raises ImportError, AttributeError, KeyError where there is none."""
    module, _, names = path.partition(":")
    *owners, name = names.split(".")
    return functools.reduce(getattr, owners, import_module(module)), name
