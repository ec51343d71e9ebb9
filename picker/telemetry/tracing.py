"""Decisions as OpenTelemetry spans, made after the fact from what was recorded; sent behind the requests' back.

    picker.pick           SERVER, below the caller's span: from the request's headers to the end of its response
      picker.receive      the body
      picker.read         and what it says
      picker.prompt       text, tokens, prefix chain
      picker.queue        waiting for a worker with room
      picker.decide       with the cost terms of the chosen worker
      picker.reply        the answer to the proxy
      chat MODEL          CLIENT: the worker's part; the worker gets this one in `traceparent` as the span above its own

Attributes follow the GenAI semantic conventions where they have one. No text of a prompt, and no name that a client
made up.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from picker.events.decided import Decided
from picker.events.record import Record
from picker.events.recorder import Recorder
from picker.events.trace_context import Span, parsed
from picker.telemetry.trace_settings import Traces

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

_EVERY_S = 0.25
_LOG_WAIT_S = 2.0
"""Envoy's access log, which knows the attempts and the ending, comes in batches of a second."""
_MOST_AT_ONCE = 100
_MOST_IN_BATCH = 512
_NS = 1_000_000_000


def tracing(settings: Traces, recorder: Recorder) -> Tracing:
    """To an OTLP receiver over gRPC. Raises ModuleNotFoundError where the extra is not installed."""
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(endpoint=settings.endpoint, insecure=settings.endpoint.startswith("http://"))
    batch = min(_MOST_IN_BATCH, settings.queue)
    sender = BatchSpanProcessor(exporter, max_queue_size=settings.queue, max_export_batch_size=batch)
    return Tracing(settings, recorder, sender, Random())


class Tracing:
    """Listens to a recorder."""

    def __init__(self, settings: Traces, recorder: Recorder, sender: SpanProcessor, rng: Random):
        from opentelemetry.sdk.resources import Resource

        self._settings = settings
        self._sender = sender
        self._rng = rng
        self._resource = Resource.create({"service.name": settings.service, "service.instance.id": recorder.process})
        self._ended: deque[tuple[float, Decided]] = deque(maxlen=settings.queue)
        recorder.on_decided.append(self._begin)
        recorder.on_ended.append(self._end)

    async def run(self) -> None:
        """Until cancelled; then what has ended is sent as it is."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self.send(time.monotonic() - _LOG_WAIT_S)
        finally:
            await self.send(float("inf"))
            await asyncio.to_thread(self._sender.shutdown)

    async def send(self, ended_before: float) -> None:
        """What has ended before this time, as spans."""
        while self._ended and self._ended[0][0] <= ended_before:
            for _ in range(min(_MOST_AT_ONCE, len(self._ended))):
                for span in self._spans(self._ended.popleft()[1]):
                    self._sender.on_end(span)
            await asyncio.sleep(0)

    def _begin(self, decided: Decided) -> None:
        above = parsed(decided.asked.traceparent)
        if above is None:
            if self._rng.random() < self._settings.sample:
                decided.span = Span(self._number(128), "", self._number(64), self._number(64))
        elif above[2]:
            decided.span = Span(above[0], above[1], self._number(64), self._number(64))

    def _end(self, decided: Decided) -> None:
        if decided.span:
            self._ended.append((time.monotonic(), decided))

    def _number(self, bits: int) -> str:
        return f"{self._rng.getrandbits(bits) or 1:0{bits // 4}x}"

    def _spans(self, decided: Decided) -> Iterator[ReadableSpan]:
        from opentelemetry.trace import SpanKind

        span, record, when = decided.span, decided.record(), decided.moment
        assert span is not None
        # The clocks of spans are Unix time's, ours is not.
        ahead = record.at - (decided.done_at or when.now)
        outcome, replied_at = record.outcome, decided.replied_at or decided.done_at
        ended_at = ahead + max(decided.ended_at or 0.0, replied_at, when.now)
        is_error = outcome.end in ("failed", "refused")
        about = _attributes(record)
        yield self._span(
            "picker.pick", span.trace, span.own, span.parent, SpanKind.SERVER,
            ahead + (when.began_at or when.started_at), ended_at, about, is_error,
        )  # fmt: skip
        for name, began_at, seconds in _steps(decided):
            yield self._inner(span, name, ahead + began_at, seconds, _costs(record) if name == "decide" else {})
        if record.candidates:
            name = f"{about['gen_ai.operation.name']} {record.model}".strip()
            told = {**_usage(record), "server.address": outcome.served or record.endpoints[0]}
            yield self._span(
                name, span.trace, span.upstream, span.own, SpanKind.CLIENT, ahead + replied_at, ended_at, told, is_error
            )

    def _inner(self, span: Span, name: str, at: float, seconds: float, told: dict[str, Any]) -> ReadableSpan:
        from opentelemetry.trace import SpanKind

        number, kind = self._number(64), SpanKind.INTERNAL
        return self._span(f"picker.{name}", span.trace, number, span.own, kind, at, at + seconds, told, False)

    def _span(
        self,
        name: str,
        trace: str,
        own: str,
        parent: str,
        kind: Any,
        began: float,
        ended: float,
        attributes: dict[str, Any],
        is_error: bool,
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import Status, StatusCode

        return ReadableSpan(
            name=name,
            context=_context(trace, own, is_remote=False),
            parent=_context(trace, parent, is_remote=True) if parent else None,
            resource=self._resource,
            attributes={name: value for name, value in attributes.items() if value not in ("", None)},
            kind=kind,
            start_time=int(began * _NS),
            end_time=int(ended * _NS),
            status=Status(StatusCode.ERROR if is_error else StatusCode.UNSET),
            instrumentation_scope=InstrumentationScope("picker"),
        )


def _steps(decided: Decided) -> Iterator[tuple[str, float, float]]:
    """What was done before the request went on: its name, when it began, and for how many seconds it went on."""
    when, stages = decided.moment, decided.stages
    steps = (
        ("receive", when.began_at, stages.receive_s),
        ("read", when.started_at, stages.read_s),
        ("prompt", when.read_at, stages.prompt_s),
        ("queue", when.known_at, stages.queue_s),
        ("decide", when.now, stages.decide_s),
        ("reply", decided.done_at, stages.reply_s),
    )
    return (step for step in steps if step[2])


def _costs(record: Record) -> dict[str, float]:
    terms = record.candidates[0].terms if record.candidates else {}
    return {f"picker.cost.{name}": value for name, value in terms.items()}


def _context(trace: str, span: str, is_remote: bool) -> Any:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace, 16), int(span, 16), is_remote, TraceFlags(TraceFlags.SAMPLED))


def _attributes(record: Record) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat" if record.dialect in ("openai", "anthropic") else record.dialect,
        "gen_ai.request.model": record.model,
        "http.response.status_code": record.outcome.status or None,
        "error.type": record.reason or (record.outcome.end if record.outcome.end == "failed" else None),
        "picker.event.id": record.id,
        "picker.request.id": record.request_id,
        "picker.verdict": record.verdict,
        "picker.worker": record.worker,
        "picker.policy": record.policy,
        "picker.profile": record.profile,
        "picker.prompt.rung": record.rung,
        "picker.prompt.tokens": record.prompt_tokens,
        "picker.hit.tokens": record.hit_tokens,
        "picker.eligible": record.eligible,
        "picker.end": record.outcome.end,
        "picker.attempts": record.outcome.attempts,
        **_usage(record),
    }


def _usage(record: Record) -> dict[str, Any]:
    outcome = record.outcome
    return {
        "gen_ai.usage.input_tokens": outcome.prompt_tokens,
        "gen_ai.usage.output_tokens": outcome.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": outcome.cached_tokens,
    }
