"""Short picks at a steady rate, alone and beside long ones, in one process and one event loop as in a picker."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from benchmarks.common.conversations import Conversations
from benchmarks.common.load import poisson
from benchmarks.pick.envoy import REQUEST
from benchmarks.pick.subject import MODEL, Subject
from benchmarks.prompts.conversations import Conversation
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.prompts.tokenizer import ModelTokenizer

LONG_TOKENS = 128_000
_WORKERS = 4
_SHORT_BYTES = 2048
_WARM_UP = 100


class Plan(msgspec.Struct, frozen=True):
    """`short_per_s`, `long_per_s`: picks a second. `seconds`: of each phase, `rounds` of pairs of phases."""

    rounds: int
    seconds: float
    short_per_s: float = 200.0
    long_per_s: float = 4.0
    long_tokens: int = LONG_TOKENS
    conversations: int = 4


class Phase(msgspec.Struct, frozen=True):
    """Latencies of the short picks in one."""

    p50_ms: float
    p99_ms: float


class Found(msgspec.Struct, frozen=True):
    """With prompts read in one way. Medians over the rounds; `added_...` are those of the differences of pairs.

    `long_cpu_ms`: of all threads for one long pick, with nothing beside it.
    """

    read_as: str
    alone: Phase
    beside: Phase
    added_p50_ms: float
    added_p99_ms: float
    long_cpu_ms: float


async def measure(plan: Plan, tokenizer: Path, tokenizes: bool) -> Found:
    """All rounds with prompts read as text, or as tokens."""
    model_tokenizer = ModelTokenizer.load(tokenizer)
    subject = Subject(_WORKERS, _SHORT_BYTES, {MODEL: model_tokenizer} if tokenizes else {})
    rounds = _Rounds(plan, subject, model_tokenizer)
    try:
        await rounds.warm_up()
        pairs, cpu_ms = [], list[float]()
        for number in range(plan.rounds):
            pairs.append((await rounds.phase(number, False), await rounds.phase(number, True)))
            cpu_ms += await rounds.long_cpu_ms()
    finally:
        subject.close()
    return _found("tokens" if tokenizes else "text", pairs, statistics.median(cpu_ms))


class _Rounds:
    def __init__(self, plan: Plan, subject: Subject, tokenizer: ModelTokenizer):
        self._plan = plan
        self._subject = subject
        self._short = Conversations(_SHORT_BYTES, MODEL)
        seeds = range(plan.conversations)
        self._long = [Conversation(tokenizer, MODEL, plan.long_tokens, seed) for seed in seeds]
        self._number = 0

    async def warm_up(self) -> None:
        """Each long conversation comes to be known, and all is used once."""
        for conversation in self._long:
            # In the time that a pick has for it not all of so long a prompt is read: the next one goes on from there.
            for _ in range(20):
                await self._pick(conversation.history)
        for _ in range(_WARM_UP):
            await self._pick(self._next_short())
        gc.collect()
        gc.freeze()

    async def phase(self, number: int, is_beside: bool) -> Phase:
        """The same short picks at the same times, whatever is beside them."""
        plan = self._plan
        arrivals = poisson(plan.short_per_s, plan.seconds, Random(number))
        # Made before: a client's work is not the picker's.
        bodies = [
            each.body() for each in self._long for _ in range(round(plan.long_per_s * plan.seconds / len(self._long)))
        ]
        short = [self._next_short() for _ in arrivals]
        async with asyncio.TaskGroup() as tasks:
            if is_beside:
                tasks.create_task(self._send(bodies, [(i + 0.5) / plan.long_per_s for i in range(len(bodies))]))
            sending = tasks.create_task(self._send(short, arrivals))
        cuts = statistics.quantiles(sending.result(), n=100, method="inclusive")
        return Phase(1000 * cuts[49], 1000 * cuts[98])

    async def long_cpu_ms(self) -> list[float]:
        """Of one pick of each long conversation, with a new last turn."""
        found = []
        for conversation in self._long:
            body = conversation.body()
            cpu = time.process_time()
            await self._pick(body)
            found.append(1000 * (time.process_time() - cpu))
        return found

    async def _send(self, bodies: Sequence[bytes], arrivals: Sequence[float]) -> list[float]:
        """Seconds from when each was due."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for body, at in zip(bodies, arrivals, strict=True):
                await asyncio.sleep(started + at - loop.time())
                tasks.append(group.create_task(self._timed(body, started + at)))
        return [task.result() for task in tasks]

    async def _timed(self, body: bytes, due: float) -> float:
        await self._pick(body)
        return asyncio.get_running_loop().time() - due

    async def _pick(self, body: bytes) -> None:
        picker = self._subject.picker
        answer = await picker.pick(Pick(REQUEST, body))
        assert isinstance(answer, Picked) and answer.placement, answer
        picker.first_byte(answer.placement, 200, "")
        picker.release(answer.placement)

    def _next_short(self) -> bytes:
        self._number += 1
        return self._short.body(self._number)


def _found(read_as: str, pairs: Sequence[tuple[Phase, Phase]], long_cpu_ms: float) -> Found:
    return Found(
        read_as,
        _median([alone for alone, _ in pairs]),
        _median([beside for _, beside in pairs]),
        added_p50_ms=statistics.median(beside.p50_ms - alone.p50_ms for alone, beside in pairs),
        added_p99_ms=statistics.median(beside.p99_ms - alone.p99_ms for alone, beside in pairs),
        long_cpu_ms=long_cpu_ms,
    )


def _median(phases: Sequence[Phase]) -> Phase:
    return Phase(statistics.median(each.p50_ms for each in phases), statistics.median(each.p99_ms for each in phases))
