"""Decisions to a file or a stream, behind the requests' back: a bounded queue, a task that empties it, lines of JSON.

A decision is written once its request has ended and Envoy's access log has had time to say how. What it saw of the
fleet is written at once and in order, for each line builds on the one before.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from picker.events.decided import Decided, Seen
from picker.events.files import LineFile
from picker.events.inputs import Inputs, Writer, told
from picker.events.record import line
from picker.events.recorder import Recorder
from picker.events.settings import Events
from picker.scheduling.decision import Routed
from picker.scheduling.request import SchedulingRequest

log = structlog.get_logger()

Append = Callable[[Sequence[bytes]], Awaitable[None]]
"""Adds lines to a stream. Raises OSError."""

_EVERY_S = 0.1
_LOG_WAIT_S = 2.0
"""Envoy sends its access log in batches, one each second."""
_MOST_AT_ONCE = 50
_SPREAD = 2_654_435_761  # Knuth's multiplier: neighbouring numbers are sampled far apart


@dataclass(frozen=True, slots=True)
class _Made:
    """A decision that is to be made again some day."""

    decided: Decided
    seen: Seen
    about: SchedulingRequest
    decision: Routed | None


class Sink:
    """Listens to a recorder and writes what it hears. Raises OSError where the file cannot be opened.

    `policy`: the settings that bear on decisions. `append`: None where there is no stream.
    """

    def __init__(self, settings: Events, recorder: Recorder, policy: dict[str, Any], append: Append | None):
        self.dropped = 0
        """Decisions that could not be written, for want of room, time or a working target."""
        self._settings = settings
        self._process = recorder.process
        self._writer = Writer(recorder.process, policy)
        self._file = LineFile(settings.file, settings.file_bytes, settings.files) if settings.file else None
        self._append = append
        self._is_failing = False
        self._inputs: deque[_Made] = deque()
        self._early: list[bytes] = []
        self._ended: deque[tuple[float, Decided]] = deque()
        if settings.replayable:
            recorder.on_decided.append(self._decided)
        recorder.on_ended.append(self._end)

    def configure(self, policy: dict[str, Any]) -> None:
        """Other settings bear on decisions from now on. Those that wait to be written were made by the old ones."""
        waiting, self._inputs = self._inputs, deque()
        self._early += [line(each) for made in waiting for each in self._lines(made)]
        self._writer = Writer(self._process, policy)

    async def run(self) -> None:
        """Until cancelled; then what has ended is written as it is."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self._write(time.monotonic() - _LOG_WAIT_S)
        finally:
            await self.flush()
            if self._file:
                self._file.close()

    async def flush(self) -> None:
        """Writes what has ended without waiting for Envoy's access log."""
        await self._write(float("inf"))

    async def _write(self, ended_before: float) -> None:
        while self._early or self._inputs or (self._ended and self._ended[0][0] <= ended_before):
            inputs = [self._inputs.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._inputs)))]
            ended: list[Decided] = []
            while self._ended and self._ended[0][0] <= ended_before and len(ended) < _MOST_AT_ONCE:
                ended.append(self._ended.popleft()[1])
            await self._put(inputs, ended)
            # Records take time to build; picks go first.
            await asyncio.sleep(0)

    async def _put(self, inputs: Sequence[_Made], ended: Sequence[Decided]) -> None:
        records = [line(each.record()) for each in ended]
        try:
            if self._file:
                early, self._early = self._early, []
                await asyncio.to_thread(self._file.write, early)
                if self._file.is_full:
                    await asyncio.to_thread(self._file.rotate)
                    self._writer.restart()
                seen = [line(each) for made in inputs for each in self._lines(made)]
                await asyncio.to_thread(self._file.write, (*seen, *records))
            if self._append:
                await self._append(records)
        except OSError as error:
            self._lost(len(inputs) + len(ended), error)
        else:
            self._is_failing = False

    def _lines(self, made: _Made) -> list[Any]:
        decided, decision = made.decided, made.decision
        terms = decided.asked.terms
        inputs = Inputs(
            id=decided.id,
            shape=0,
            now=0.0,
            ties=decided.ties,
            about=told(made.about, made.seen.roster),
            tenant=decided.shown_name(terms.tenant),
            objective=decided.shown_name(terms.objective),
            endpoints=decision.endpoints if decision else (),
            reason=decided.reason,
            is_detour=bool(decision and decision.is_detour),
        )
        return list(self._writer.lines(made.seen, inputs))

    def _decided(self, decided: Decided) -> None:
        if len(self._inputs) >= self._settings.queue:
            self.dropped += 1
        elif decided.seen and decided.about:
            # By then the ring may have shortened it.
            self._inputs.append(_Made(decided, decided.seen, decided.about, decided.decision))
        decided.seen = None

    def _end(self, decided: Decided) -> None:
        if decided.end == "answered" and not self._is_sampled(decided.number):
            return
        if len(self._ended) >= self._settings.queue:
            self.dropped += 1
        else:
            self._ended.append((time.monotonic(), decided))

    def _is_sampled(self, number: int) -> bool:
        return (number * _SPREAD & 0xFFFFFFFF) < self._settings.sample * 2**32

    def _lost(self, count: int, error: OSError) -> None:
        self.dropped += count
        self._writer.restart()
        if not self._is_failing:
            self._is_failing = True
            log.error("decisions_not_written", consequence="they are dropped and counted", error=type(error).__name__)
