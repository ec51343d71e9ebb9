"""The engine in real time: one task that steps it, sleeps as long as the step takes, and hands out what it produced."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from picker.simulation.engine import Engine, Gauges, StepResult
from picker.simulation.kv_cache import BlockStored, CacheEvent
from picker.simulation.kv_publisher import KvPublisher
from picker.simulation.metrics import WorkerMetrics
from picker.simulation.sequence import Request

MAX_LAG_SECONDS = 0.05
"""How far steps may run late on a busy machine and still be caught up with; more is forgotten."""


class Busy(Exception):
    """As many requests are queued as the worker takes."""


@dataclass(slots=True)
class Piece:
    """Unread tokens of one answer; `finish_reason` is set with its last ones ("abort": no more come)."""

    index: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None


class Outputs:
    """The answers to the prompts of one HTTP request. A slow reader gets several tokens in one piece, as from vLLM."""

    def __init__(self, request_ids: Sequence[str], started: float):
        self.cached_tokens = 0
        self.started = started
        self._index = {request_id: index for index, request_id in enumerate(request_ids)}
        self._unread: dict[int, Piece] = {}
        self._changed = asyncio.Event()

    @property
    def open_ids(self) -> list[str]:
        """The engine's ids of the answers that are not finished."""
        return list(self._index)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        """Pieces, until every answer is finished."""
        while self._index or self._unread:
            await self._changed.wait()
            self._changed.clear()
            pieces, self._unread = self._unread, {}
            for piece in pieces.values():
                yield piece

    def add(self, request_id: str, tokens: Sequence[int], finish_reason: str | None) -> None:
        """What the engine has for one answer."""
        index = self._index[request_id]
        piece = self._unread.setdefault(index, Piece(index))
        piece.tokens.extend(tokens)
        piece.finish_reason = finish_reason
        if finish_reason:
            del self._index[request_id]
        self._changed.set()


class RealTimeEngine:
    """Drives an engine. `slowdown` stretches its steps; while `moving` is clear, nothing it does comes out.

    Lies: `claims_idle`, and `hoards`, which announces what is cached and never what is dropped.
    """

    def __init__(
        self,
        engine: Engine,
        publisher: KvPublisher,
        metrics: WorkerMetrics,
        *,
        speed: float,
        max_queued: int | None,
    ):
        self.slowdown = 1.0
        self.claims_idle = False
        self.hoards = False
        self.moving = asyncio.Event()
        self.moving.set()
        self._engine = engine
        self._publisher = publisher
        self._metrics = metrics
        self._speed = speed
        self._max_queued = max_queued
        self._outputs: dict[str, Outputs] = {}
        self._numbers = itertools.count()
        self._work = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """Prompts that are running or waiting."""
        return len(self._outputs)

    def submit(
        self, prompts: Sequence[Sequence[int]], max_tokens: Sequence[int], adapter: str | None, salt: str | None
    ) -> Outputs:
        """Queue the prompts of one HTTP request, each with its number of tokens to produce. Raises Busy, DoesNotFit."""
        if self._max_queued is not None and self.in_flight + len(prompts) > self._max_queued:
            self._metrics.rejected()
            raise Busy
        ids = [str(next(self._numbers)) for _ in prompts]
        outputs = Outputs(ids, asyncio.get_running_loop().time())
        for request_id, prompt, count in zip(ids, prompts, max_tokens, strict=True):
            self._engine.submit(Request(request_id, prompt, count, adapter, salt))
            self._outputs[request_id] = outputs
        self._work.set()
        return outputs

    def abort(self, outputs: Outputs) -> None:
        """Stop what is not finished of them."""
        for request_id in outputs.open_ids:
            self._engine.abort(request_id)
            self._outputs.pop(request_id)
            outputs.add(request_id, (), "abort")
        if self.moving.is_set():
            self._metrics.moved(self._gauges())

    def abort_all(self) -> None:
        """Stop everything: the worker shuts down."""
        for outputs in set(self._outputs.values()):
            self.abort(outputs)

    def reset_cache(self) -> bool:
        """Forget all cached prefixes; False while any request runs."""
        return self._engine.reset_cache()

    async def run(self) -> None:
        """Step for ever, until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._engine.has_work:
                self._work.clear()
                await self._work.wait()
                due = clock()
            result = self._engine.step()
            due = max(due, clock() - MAX_LAG_SECONDS) + result.seconds * self.slowdown / self._speed
            await asyncio.sleep(max(0.0, due - clock()))
            await self.moving.wait()
            self._hand_out(result, clock())

    def _gauges(self) -> Gauges:
        return Gauges() if self.claims_idle else self._engine.gauges()

    def _publish(self, events: Sequence[CacheEvent]) -> None:
        if self.hoards:
            self._engine.reset_cache()
            events = [event for event in events if isinstance(event, BlockStored)]
        self._publisher.publish(events)

    def _hand_out(self, result: StepResult, now: float) -> None:
        self._publish(result.events)
        self._metrics.stepped(result, self._gauges())
        for admitted in result.admitted:
            if outputs := self._outputs.get(admitted.request_id):
                outputs.cached_tokens += admitted.cached_tokens
        for token in result.produced:
            # An answer that was aborted while the step ran has no reader any more.
            if outputs := self._outputs.get(token.request_id):
                if token.position == 0:
                    self._metrics.first_token(now - outputs.started)
                outputs.add(token.request_id, (token.token,), "length" if token.finished else None)
                if token.finished:
                    del self._outputs[token.request_id]
