"""A pick, from the request's bytes to the placement in the books: reads, hashes, decides, books."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import structlog

from picker.admission.refusals import STATUS as CAUSE_STATUS
from picker.admission.refusals import Turned
from picker.admitting import Admitting, not_picked
from picker.attempts import Attempts
from picker.config import Config
from picker.events.decided import Asked as AskedFor
from picker.events.decided import Decided, Moment
from picker.events.recorder import Recorder
from picker.extproc.actions import Pick
from picker.extproc.events import NotPicked, Picked
from picker.fleet.endpoints import canonical, host_of
from picker.fleet.view import View
from picker.observing import Observer, asked_for
from picker.placing import Placement, Placer, Question
from picker.prompts.reader import LOAD_ONLY, PrefixChain, PromptReader
from picker.requests.model import InferenceRequest
from picker.requests.read import BadRequest, read_request
from picker.requests.rewrite import splice_model
from picker.requests.usage import Unreadable, read_usage
from picker.scheduling.decision import MESSAGE, RETRY_S, STATUS, Refused
from picker.scheduling.request import SchedulingRequest
from picker.telemetry.metrics import Metrics
from picker.threads import Threads

log = structlog.get_logger()

_TEST_SELECTION = "test-epp-endpoint-selection"
_QUICK_BODY_BYTES = 1 << 19
_PARSE_BUDGET_S = 3.0
_MOST_DIGITS = 16


Asked = Callable[[str, str, float, int, int, float], None]
"""Told of each request: model, adapter or "", prefill in seconds, tokens of prompt and expected answer, the time."""


def _nobody_asks(
    model: str, adapter: str, prefill_s: float, prompt_tokens: int, output_tokens: int, now: float
) -> None:
    pass


class _Known(NamedTuple):
    """A request that was read. `new_body` takes the place of its body, if not None."""

    request: InferenceRequest
    new_body: bytes | None
    base: str
    adapter: str
    prefix: PrefixChain
    moment: Moment


class Picker:
    """Answers `Pick` actions. `is_blind` says that the fleet has not been read yet: then Envoy is left to choose."""

    def __init__(
        self,
        config: Config,
        view: View,
        reader: PromptReader,
        metrics: Metrics,
        is_blind: Callable[[], bool],
        observer: Observer | None = None,
    ):
        self._view = view
        self._reader = reader
        self._metrics = metrics
        self._is_blind = is_blind
        self._placer = Placer(config, view)
        self._observer = observer or Observer(Recorder(config.events, "picker"), view)
        self.admitting = Admitting(config, view, self._placer, self._observer, metrics)
        self.asked: Asked = _nobody_asks
        self._limits = config.limits
        self._tokenizers = Threads(config.limits.tokenizer_threads, "tokenizer")
        # One of their own, for work that is short: a model must not go unread because a prompt is long.
        self._parsers = Threads(1, "parser")
        self._rng = Random()
        self._rewrites = config.rewrites
        self._conformance = config.conformance
        self._reveals = config.reveal_decision
        self._attempts = Attempts()

    def configure(self, config: Config) -> None:
        """Takes over what may change at run time (`picker.reload.LIVE`); the next pick goes by it."""
        self._rewrites = config.rewrites
        self._placer.configure(config)
        self.admitting.configure(config)

    async def pick(self, wanted: Pick) -> Picked | NotPicked:
        """The verdict. A defect of ours must not fail the request: then too Envoy is left to choose."""
        started = time.monotonic()
        try:
            return await self._pick(wanted, started)
        except Exception as error:
            self._metrics.errors.inc()
            # Neither the text of an exception nor its traceback: they may quote the prompt.
            log.error("pick_failed", consequence="left to Envoy", error=type(error).__name__, at=_where(error))
            return Picked(())
        finally:
            self._metrics.pick_seconds.observe(time.monotonic() - started)

    def replied(self, placement: Placement) -> None:
        """The answer to the proxy has gone out."""
        self._observer.replied(placement, time.monotonic())

    def first_byte(self, placement: Placement, status: int, served: str) -> None:
        """A worker has begun to answer. When its first token came does not follow: see `InFlight.book_unseen`.

        `served` is its endpoint, "" where the proxy does not say; another one than picked was a fallback's.
        """
        now = time.monotonic()
        self.admitting.not_to_be_cut(placement)
        self._placer.answered(placement, status, served, now)
        self._observer.first_byte(placement, status, served, now)

    def answered(self, placement: Placement, tail: bytes) -> None:
        """A response has passed whole; `tail` is its end."""
        if not placement.booking.is_answered:
            return
        try:
            usage = read_usage(tail)
        except Unreadable:
            self._metrics.usage_unreadable.inc()
            return
        if usage is None:
            self._metrics.usage_missing.inc()
            return
        model, predicted = placement.request.model or "", placement.decision.hit_tokens
        self._metrics.used(model, usage.prompt, usage.cached, predicted)
        self._observer.told(placement, usage)
        self.admitting.consumed(placement, usage.prompt - (usage.cached or 0) + usage.output)
        self._view.told(placement.booking.slot, usage.prompt, usage.cached, usage.output, time.monotonic())

    def release(self, placement: Placement, is_unfinished: bool = False) -> None:
        """The exchange is over. `is_unfinished`: its response has begun to pass and has not come to its end."""
        now = time.monotonic()
        self.admitting.not_to_be_cut(placement)
        self._placer.release(placement, now)
        self._observer.released(placement, now, is_unfinished)

    async def what_if(self, wanted: Pick, question: Question) -> Decided:
        """The decision that would be made about a request now. Nothing is booked, and nothing is recorded.

        Raises BadRequest, TimeoutError.
        """
        known = await self._understand(wanted, time.monotonic())
        placer = self._placer.what_if(question)
        asked, about = self._about(placer, wanted, known, question.avoid)
        decision, _ = placer.decide(about, known.moment.now)
        return self._observer.imagined(asked, about, decision, placer.salt + about.sequence, known.moment)

    async def look_up(self, wanted: Pick) -> tuple[str, PrefixChain]:
        """The model under whose name a request's prompt is cached, and its prefix. Raises BadRequest, TimeoutError."""
        known = await self._understand(wanted, time.monotonic())
        return known.base, known.prefix

    def close(self) -> None:
        """Lets go of the threads."""
        self._tokenizers.close()
        self._parsers.close()

    async def _pick(self, wanted: Pick, started: float) -> Picked | NotPicked:
        if self._is_blind():
            return self._pass("fleet-unread", started)
        if self._conformance and (chosen := self._chosen_by_test(wanted)):
            return Picked(chosen)
        try:
            known = await self._understand(wanted, started)
        except BadRequest as error:
            self._metrics.refused("bad-request")
            self._observer.unreadable(wanted, "bad-request", 400, Moment(started, time.monotonic()))
            return NotPicked(400, "bad-request", str(error))
        except TimeoutError:
            return self._pass("body-unread", started)
        answer = await self._place(wanted, known)
        is_rewritten = known.new_body and isinstance(answer, Picked)
        return msgspec.structs.replace(answer, new_body=known.new_body) if is_rewritten else answer

    async def _understand(self, wanted: Pick, started: float) -> _Known:
        """Raises BadRequest, TimeoutError."""
        request = await self._read(wanted)
        read_at = time.monotonic()
        request, new_body = self._renamed(request, wanted.body)
        base, adapter = self._view.base_and_adapter(request.model) if request.model else ("", "")
        prefix = await self._prefix(request, base, adapter)
        now = time.monotonic()
        return _Known(request, new_body, base, adapter, prefix, Moment(started, now, wanted.began_at, read_at, now))

    def _about(
        self, placer: Placer, wanted: Pick, known: _Known, avoid: frozenset[str]
    ) -> tuple[AskedFor, SchedulingRequest]:
        """What is told of the request, and what the decision is made about."""
        request = known.request
        about = placer.about(request, known.prefix, known.base, known.adapter, wanted.headers, wanted.subset, avoid)
        return asked_for(request, known.prefix.rung, wanted.headers), about

    def _renamed(self, request: InferenceRequest, body: bytes) -> tuple[InferenceRequest, bytes | None]:
        """The request under the name that workers know, and its body with that name if it had another."""
        target = self._rewrites.get(request.model or "", request.model)
        if isinstance(target, dict):
            [target] = self._rng.choices(list(target), list(target.values()))
        # A name that a header asks for has replaced the body's in `request` already.
        if target is None or (target == request.model and not request.terms.model):
            return request, None
        new_body = splice_model(body, target)
        return (request, None) if new_body is None else (msgspec.structs.replace(request, model=target), new_body)

    def turn_away(self, headers: Mapping[str, str], tenant: str) -> NotPicked | None:
        """The refusal of a request whose body has not come yet; None where it may come."""
        length = headers.get("content-length", "")
        size = int(length) if length.isascii() and length.isdecimal() and len(length) < _MOST_DIGITS else 0
        turned = self.admitting.turn_away(headers, tenant, size)
        if turned is None:
            return None
        self._metrics.refused(turned.cause)
        return not_picked(turned)

    async def _place(self, wanted: Pick, known: _Known) -> Picked | NotPicked:
        request, base = known.request, known.base
        asked, about = self._about(self._placer, wanted, known, self._attempts.tried(wanted.headers))
        settled = await self.admitting.admit(about, request.terms, wanted.tenant, base, len(wanted.body), known.moment)
        placed, moment, seen = settled.outcome, settled.moment, settled.seen
        ties = self._placer.salt + about.sequence
        prefill_s = self._placer.prefill_s(about, placed)
        if prefill_s is not None and about.model:
            tokens = about.prompt_tokens, about.expected_output_tokens
            self.asked(base or about.model, about.adapter, prefill_s, *tokens, time.monotonic())
        if isinstance(placed, Turned):
            self._metrics.refused(placed.cause)
            self._observer.turned_away(asked, about, placed.cause, CAUSE_STATUS[placed.cause], moment)
            return not_picked(placed)
        if isinstance(placed, Refused):
            self._metrics.refused(placed.reason)
            self._observer.refused(asked, about, placed, ties, moment, seen)
            return NotPicked(
                STATUS[placed.reason], placed.reason, MESSAGE[placed.reason], RETRY_S.get(placed.reason, 0)
            )
        traceparent = self._observer.routed(asked, placed, ties, moment, seen)
        decision, prefill = placed.decision, placed.prefill
        self._attempts.note(wanted.headers, decision.endpoints[0])
        self._metrics.routed(request.model or "", about.prompt_tokens, decision.hit_tokens, known.prefix.rung)
        return Picked(
            decision.endpoints,
            placed,
            prefiller=prefill.endpoints[0] if prefill else "",
            reason=decision.explain(about.prompt_tokens) if self._reveals else "",
            traceparent=traceparent,
        )

    async def _prefix(self, request: InferenceRequest, model: str, adapter: str) -> PrefixChain:
        arguments = (request.prompt, model, adapter, request.cache_salt)
        if not self._reader.is_slow(request.prompt, model):
            return self._reader.read(*arguments)
        # In time the reader gives what it knows by then; in twice the time it has had no thread, or one huge segment.
        budget_s = self._limits.tokenize_budget_s
        late = threading.Event()
        timer = asyncio.get_running_loop().call_later(budget_s, late.set)
        try:
            return await self._tokenizers.run(partial(self._reader.read, *arguments, late.is_set), 2 * budget_s)
        except TimeoutError:
            return LOAD_ONLY
        except Exception as error:
            # A tokenizer or template that breaks is no reason not to go by load.
            self._metrics.errors.inc()
            log.error("prompt_unread", consequence="placed by load", error=type(error).__name__, at=_where(error))
            return LOAD_ONLY
        finally:
            timer.cancel()
            late.set()

    def _chosen_by_test(self, wanted: Pick) -> tuple[str, ...]:
        addresses = wanted.headers.get(_TEST_SELECTION, "").split(",")
        hosts = {host for address in addresses if (host := canonical(address)) is not None}
        return tuple(e for e in self._view.usable_endpoints() if e in hosts or host_of(e) in hosts)

    async def _read(self, wanted: Pick) -> InferenceRequest:
        """Raises BadRequest, TimeoutError."""
        if len(wanted.body) <= _QUICK_BODY_BYTES and "content-encoding" not in wanted.headers:
            return read_request(wanted.headers, wanted.body, wanted.is_whole)
        work = partial(read_request, wanted.headers, wanted.body, wanted.is_whole)
        return await self._parsers.run(work, _PARSE_BUDGET_S)

    def _pass(self, reason: str, started: float) -> Picked:
        self._metrics.passed(reason)
        self._observer.passed(reason, Moment(started, time.monotonic()))
        return Picked(())


def _where(error: BaseException) -> str:
    """The file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
