"""Follows one engine's KV events over HTTP, where a page hands each out once: TensorRT-LLM's /kv_cache_events.

Events are numbered from 0 with the engine's process. A number beyond the next one says that events are missing: the
engine's buffer ran over, or somebody else has asked for them. They cannot be had again, so what was built is given up
(`lost`) and grows anew from what follows. A number that has gone back is a new process (`restarted`).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

import httpx

from picker.agent.events import Batch, Limits, Malformed
from picker.agent.http import Server
from picker.agent.polled_events import Polled, PolledDecoder
from picker.agent.subscriber import Handler, Statistics


@dataclass(frozen=True, slots=True)
class PollerSettings:
    """Times in seconds. An engine without events may keep a request waiting for 2 s before it says so."""

    interval_s: float = 0.2
    idle_interval_s: float = 1.0
    timeout_s: float = 4.0
    limits: Limits = field(default_factory=Limits)


class Poller:
    """`run` asks `page` of `server`; `handler` is told in order."""

    def __init__(
        self, server: Server, page: str, handler: Handler, settings: PollerSettings = PollerSettings()
    ) -> None:
        self._server = server
        self._page = page
        self._handler = handler
        self._settings = settings
        self._decoder = PolledDecoder(settings.limits)
        self._counts = Statistics()
        self._holds_state = False

    def statistics(self) -> Statistics:
        """A copy. Polls are counted as replays."""
        return replace(self._counts)

    async def run(self) -> None:
        """Until cancelled. An engine that is not there yet, or no more, is waited for."""
        while True:
            is_busy = await self._poll()
            await asyncio.sleep(self._settings.interval_s if is_busy else self._settings.idle_interval_s)

    async def _poll(self) -> bool:
        self._counts.replays += 1
        try:
            status, body = await self._server.post(self._page, self._settings.timeout_s)
        except (httpx.HTTPError, TimeoutError):
            # What the engine handed out in vain shows as a gap.
            self._counts.replays_failed += 1
            return False
        if status != 200:
            self._counts.replays_failed += 1
            return False
        try:
            events = self._decoder.decode(body)
        except Malformed:
            self._counts.malformed += 1
            self._lose()
            return False
        for event in events:
            self._take(event)
        return bool(events)

    def _take(self, event: Polled) -> None:
        if event.number < self._counts.next or (event.is_first and event.number == 0 and self._holds_state):
            self._restart()
        elif event.number > self._counts.next:
            self._counts.gaps += 1
            self._lose()
        self._counts.next = event.number + 1
        self._counts.batches += 1
        self._holds_state = True
        self._handler.batch(Batch(event.events, event.rank))

    def _lose(self) -> None:
        if self._holds_state:
            self._holds_state = False
            self._counts.lost += 1
            self._handler.lost()

    def _restart(self) -> None:
        self._holds_state = False
        self._counts.restarts += 1
        self._handler.restarted()
