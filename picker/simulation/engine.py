"""An inference engine without a model: iteration-level continuous batching over a paged KV cache.

It knows no clock. `step()` does what an engine does in one forward pass and says how long that takes; a caller that
wants real time sleeps, a discrete-event simulator adds. The rules are those of vLLM's scheduler:

- a step has a token budget. Running decodes take one token each, then prompts that are partly computed go on, then
  waiting requests are admitted, first come first served, until the budget or the blocks end;
- an admitted request takes the blocks of its whole prompt; those of the longest cached prefix are shared;
- blocks are announced when they are scheduled, so identical prompts in one step share them;
- a decode that finds no block preempts the youngest sequence, which begins anew later (most of it still cached).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence as AnySequence
from dataclasses import dataclass, field

from xxhash import xxh3_64_intdigest

from picker.prompts.chain import pack
from picker.simulation.kv_cache import CacheEvent, KvCache
from picker.simulation.profiles import Profile
from picker.simulation.sequence import Request, Sequence

WATERMARK = 0.01
"""Share of the blocks that admission leaves free for running sequences to grow into; vLLM's value."""


class DoesNotFit(ValueError):
    """A request that this engine could never finish. The message says by how much."""


@dataclass(frozen=True, slots=True)
class Produced:
    """One token of an answer. `position` counts from 0; `finished` marks the last one."""

    request_id: str
    token: int
    position: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that began to run, and how much of its prompt the cache supplied."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did. An engine without work takes 0 seconds and says nothing.

    `prefilled_tokens` are those of the prompts that were finished, cached ones included (vLLM's `prompt_tokens`).
    """

    seconds: float = 0.0
    prefilled_tokens: int = 0
    produced: tuple[Produced, ...] = ()
    admitted: tuple[Admitted, ...] = ()
    preempted: int = 0
    events: tuple[CacheEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Gauges:
    """How busy the engine is. `kv_used` is the share of blocks that running requests hold, 0 to 1."""

    running: int = 0
    waiting: int = 0
    kv_used: float = 0.0
    adapters: tuple[str, ...] = ()


@dataclass(slots=True)
class _Batch:
    """The content of one step, as the step model counts it."""

    room: int
    members: list[Sequence] = field(default_factory=list)
    admitted: list[Admitted] = field(default_factory=list)
    preempted: int = 0
    prefill_tokens: int = 0
    attention: float = 0.0
    decodes: int = 0
    decode_context: int = 0

    def add(self, sequence: Sequence, chunk: int) -> None:
        self.room -= chunk
        self.members.append(sequence)
        if sequence.decoding:
            self.decodes += 1
            self.decode_context += len(sequence.tokens)
        else:
            self.prefill_tokens += chunk
            self.attention += chunk * (sequence.computed + chunk / 2)


class Engine:
    """One worker's engine.

    Answers are made of tokens of `vocabulary`, chosen by a hash of the prompt and the position: the same prompt gives
    the same answer, everywhere.
    """

    def __init__(
        self, profile: Profile, block_tokens: int, num_blocks: int, vocabulary: AnySequence[int] = range(2000)
    ):
        self.profile = profile
        self.block_tokens = block_tokens
        self.num_blocks = num_blocks
        self._vocabulary = vocabulary
        self._reserve = int(num_blocks * WATERMARK)
        self._cache = KvCache(num_blocks)
        self._running: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()

    def __repr__(self) -> str:
        return f"<Engine {len(self._running)} running, {len(self._waiting)} waiting, {self._cache!r}>"

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    def submit(self, request: Request) -> None:
        """Queue a request. Raises DoesNotFit."""
        tokens, capacity = len(request.prompt) + request.max_tokens, self.num_blocks * self.block_tokens
        if not request.prompt or request.max_tokens < 1:
            raise DoesNotFit(f"request {request.id}: prompt and answer need at least one token each")
        if tokens > capacity:
            raise DoesNotFit(f"request {request.id}: {tokens} tokens, but the KV cache holds {capacity}")
        self._waiting.append(Sequence(request, self.block_tokens))

    def abort(self, request_id: str) -> None:
        """Forget a request, running or waiting; what it has computed stays cached. Unknown ids are ignored."""
        for sequence in [*self._running, *self._waiting]:
            if sequence.request.id == request_id:
                (self._running if sequence in self._running else self._waiting).remove(sequence)
                self._cache.release(sequence.blocks)

    def reset_cache(self) -> bool:
        """Forget all cached prefixes; False while any request runs. As in vLLM, the next step's events announce it."""
        return self._cache.clear()

    def gauges(self) -> Gauges:
        """As they are now."""
        adapters = {each.request.adapter for each in self._running if each.request.adapter}
        kv_used = self._cache.used_blocks / self.num_blocks
        return Gauges(len(self._running), len(self._waiting), kv_used, tuple(sorted(adapters)))

    def cached_blocks(self) -> Counter[int]:
        """Copies of each block hash that the cache holds: what replaying all events must give."""
        return self._cache.contents()

    def step(self) -> StepResult:
        """One forward pass: schedule, then produce a token for each sequence that is computed to its end."""
        batch = _Batch(room=self.profile.max_batch_tokens)
        self._schedule_decodes(batch)
        self._schedule_prefills(batch)
        if not batch.preempted:
            self._admit(batch)
        if not batch.members:
            return StepResult()
        complete = [sequence for sequence in batch.members if not sequence.remaining]
        prefilled_tokens = sum(len(sequence.tokens) for sequence in complete if not sequence.produced)
        produced = tuple(self._produce(sequence) for sequence in complete)
        return StepResult(
            seconds=self.profile.step_seconds(
                prefill_tokens=batch.prefill_tokens,
                attention=batch.attention,
                decodes=batch.decodes,
                decode_context=batch.decode_context,
            ),
            prefilled_tokens=prefilled_tokens,
            produced=produced,
            admitted=tuple(batch.admitted),
            preempted=batch.preempted,
            events=self._cache.take_events(),
        )

    def _schedule_decodes(self, batch: _Batch) -> None:
        for sequence in [each for each in self._running if each.decoding]:
            # Victims come from the end of the list, so none of them is in the batch yet.
            while sequence.blocks and not self._grow(sequence):
                self._preempt(self._running[-1], batch)
            if sequence.blocks and batch.room:
                self._compute(sequence, 1, batch)

    def _schedule_prefills(self, batch: _Batch) -> None:
        scheduled = set(batch.members)
        for sequence in self._running:
            if batch.room and sequence not in scheduled and not sequence.decoding:
                self._compute(sequence, min(sequence.remaining, batch.room), batch)

    def _admit(self, batch: _Batch) -> None:
        while self._waiting and batch.room and len(self._running) < self.profile.max_seqs:
            sequence = self._waiting[0]
            if not self._place(sequence):
                return
            self._running.append(self._waiting.popleft())
            if sequence.cached_tokens is None:
                sequence.cached_tokens = sequence.computed
                batch.admitted.append(Admitted(sequence.request.id, len(sequence.tokens), sequence.computed))
            self._compute(sequence, min(sequence.remaining, batch.room), batch)

    def _place(self, sequence: Sequence) -> bool:
        """Take the blocks of all its tokens, if there are enough."""
        cached = self._cache.find(sequence.reusable_hashes())
        fresh = sequence.blocks_needed - len(cached)
        reserve = self._reserve if self._running else 0
        if self._cache.available(beside=cached) < fresh + reserve:
            return False
        self._cache.share(cached)
        sequence.blocks = cached + self._cache.allocate(fresh)
        sequence.computed = len(cached) * self.block_tokens
        return True

    def _grow(self, sequence: Sequence) -> bool:
        missing = sequence.blocks_needed - len(sequence.blocks)
        if self._cache.available() < missing:
            return False
        sequence.blocks += self._cache.allocate(missing)
        return True

    def _preempt(self, sequence: Sequence, batch: _Batch) -> None:
        self._running.remove(sequence)
        self._waiting.appendleft(sequence)
        self._cache.release(sequence.blocks)
        sequence.blocks, sequence.computed = [], 0
        batch.preempted += 1

    def _compute(self, sequence: Sequence, chunk: int, batch: _Batch) -> None:
        batch.add(sequence, chunk)
        full = sequence.computed // self.block_tokens
        sequence.computed += chunk
        end = sequence.computed // self.block_tokens
        if end > full:
            self._cache.fill(sequence.blocks[full:end], sequence.stored(full, end))

    def _produce(self, sequence: Sequence) -> Produced:
        request, position = sequence.request, sequence.produced
        token = self._choose(request.prompt, position)
        sequence.tokens.append(token)
        finished = sequence.produced == request.max_tokens
        if finished:
            self._running.remove(sequence)
            self._cache.release(sequence.blocks)
        return Produced(request.id, token, position, finished)

    def _choose(self, prompt: AnySequence[int], position: int) -> int:
        # The end of a prompt tells prompts apart, and costs the same for long ones.
        value = xxh3_64_intdigest(pack(prompt[-32:]) + len(prompt).to_bytes(4, "little"), seed=position)
        return self._vocabulary[value % len(self._vocabulary)]
