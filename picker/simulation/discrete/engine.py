"""The engine of `picker.simulation.engine` for long simulations: the same rules, at the cost of what changes.

It works on block ids in place of tokens, keeps sums in place of lists, and takes many decode steps at once as long as
nothing but the decoding itself happens: no prompt to prefill, no answer that ends, no block that is missing. A request
that arrives in the middle shortens such a leap to the step in progress (`cut`). `tests/unit/test_discrete_engine.py`
holds both engines to the same times and the same cache hits.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from picker.simulation.engine import WATERMARK, DoesNotFit
from picker.simulation.kv_cache import BlockStored, CacheEvent, KvCache
from picker.simulation.profiles import Profile

IDLE = math.inf


@dataclass(slots=True, eq=False)
class Job:
    """A request inside an engine.

    `chain` holds the ids of the full blocks of prompt and answer, as far as they can ever be shared: equal ids mean
    equal prefixes. `cached_tokens` is what the cache supplied when the job was first admitted.
    """

    prompt_tokens: int
    output_tokens: int
    chain: Sequence[int] = field(repr=False)
    adapter: str = ""
    cached_tokens: int | None = None
    length: int = 0
    computed: int = 0
    produced: int = 0
    filled: int = 0
    order: int = 0
    decoding_since: int | None = None
    last_step: int = -1
    blocks: list[int] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class Progress:
    """What the steps that have just ended brought: jobs with a first token, jobs that ended, cache events."""

    first_tokens: list[Job]
    ended: list[Job]
    events: tuple[CacheEvent, ...]


@dataclass(slots=True)
class _Plan:
    """Steps that are under way: one that prefills `chunks`, or several that only decode.

    `step_s` is the first one's time; each further one takes `growth_s` longer.
    """

    started: float
    room: int
    steps: int = 1
    step_s: float = 0.0
    growth_s: float = 0.0
    chunks: list[Job] = field(default_factory=list)
    prefill_tokens: int = 0
    attention: float = 0.0
    resumed: int = 0
    resumed_context: int = 0
    loading_s: float = 0.0

    def add(self, job: Job, chunk: int) -> None:
        self.chunks.append(job)
        self.room -= chunk
        if job.produced and job.length - job.computed == 1:
            # Preempted, and all of it still cached: what is left is a decode.
            self.resumed += 1
            self.resumed_context += job.length
            return
        self.prefill_tokens += chunk
        self.attention += chunk * (job.computed + chunk / 2)

    def seconds(self, steps: int) -> float:
        return steps * self.step_s + self.growth_s * (steps * (steps - 1) / 2)

    @property
    def ends(self) -> float:
        return self.started + self.seconds(self.steps)

    def steps_until(self, now: float) -> int:
        """How many steps have begun by now, the one in progress counted; at least one."""
        past, half = now - self.started, self.growth_s / 2
        linear = self.step_s - half
        guess = past / self.step_s if not half else (math.sqrt(linear * linear + 4 * half * past) - linear) / (2 * half)
        steps = max(1, math.floor(guess))
        while steps < self.steps and self.seconds(steps) < past:
            steps += 1
        return min(steps, self.steps)


class _Adapters:
    """LoRA adapters on one worker: those that run, and idle ones, least recently used first."""

    def __init__(self, slots: int):
        self._slots = slots
        self._running: Counter[str] = Counter()
        self._idle: dict[str, None] = {}

    def has_room(self, adapter: str) -> bool:
        return not adapter or adapter in self._running or len(self._running) < self._slots

    def start(self, adapter: str) -> bool:
        """A request for it begins to run. Whether it has to be loaded."""
        if not adapter:
            return False
        is_there = adapter in self._running or adapter in self._idle
        self._idle.pop(adapter, None)
        self._running[adapter] += 1
        while len(self._running) + len(self._idle) > self._slots:
            del self._idle[next(iter(self._idle))]
        return not is_there

    def end(self, adapter: str) -> None:
        if not adapter:
            return
        self._running[adapter] -= 1
        if not self._running[adapter]:
            del self._running[adapter]
            self._idle[adapter] = None


class DiscreteEngine:
    """One worker. The caller alternates `begin` and `finish`, and may `submit` and then `cut` in between.

    `slowdown` stretches steps that begin from now on. `adapter_slots` LoRA adapters are held at once, as many at most
    run; loading one takes `adapter_load_s` of the step that admits its request.
    """

    def __init__(self, profile: Profile, block_tokens: int, adapter_slots: int = 4, adapter_load_s: float = 0.5):
        self.profile = profile
        self.block_tokens = block_tokens
        self.slowdown = 1.0
        self._cache = KvCache(profile.kv_tokens // block_tokens)
        self._reserve = int(self._cache.num_blocks * WATERMARK)
        self._adapters = _Adapters(adapter_slots)
        self._adapter_load_s = adapter_load_s
        self._running: dict[Job, None] = {}
        self._prefilling: dict[Job, None] = {}
        self._waiting: deque[Job] = deque()
        self.waiting_tokens = 0
        """Prompt tokens of the requests that wait."""
        self._decodes = 0
        self._context = 0
        self._steps = 0
        self._admitted = 0
        self._endings: list[tuple[int, int, Job]] = []
        self._growths: list[tuple[int, int, Job]] = []
        self._plan: _Plan | None = None

    def __repr__(self) -> str:
        return f"<DiscreteEngine {len(self._running)} running, {len(self._waiting)} waiting, {self._cache!r}>"

    @property
    def is_idle(self) -> bool:
        """Whether no step is under way."""
        return self._plan is None

    @property
    def jobs(self) -> list[Job]:
        """Running and waiting."""
        return [*self._running, *self._waiting]

    @property
    def running(self) -> int:
        """Requests that have been admitted and not ended."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that have not been admitted."""
        return len(self._waiting)

    @property
    def kv_used(self) -> float:
        """Share of the blocks that running requests hold, 0 to 1."""
        return self._cache.used_blocks / self._cache.num_blocks

    def submit(self, job: Job) -> None:
        """Queue a job. Raises DoesNotFit."""
        tokens, capacity = job.prompt_tokens + job.output_tokens, self._cache.num_blocks * self.block_tokens
        if tokens > capacity:
            raise DoesNotFit(f"a request of {tokens} tokens, but the KV cache of this profile holds {capacity}")
        job.length = job.prompt_tokens
        self._waiting.append(job)
        self.waiting_tokens += job.prompt_tokens

    def begin(self, now: float) -> float:
        """Starts a step, or several that are alike. When it ends; IDLE if there is nothing to do."""
        preempted = self._grow(self._steps + 1)
        plan = _Plan(now, self.profile.max_batch_tokens - self._decodes)
        for job in self._prefilling:
            self._compute(job, plan)
        if not preempted:
            self._admit(plan)
        if not (self._decodes or plan.chunks):
            return IDLE
        step_s = self.profile.step_seconds(
            prefill_tokens=plan.prefill_tokens,
            attention=plan.attention,
            decodes=self._decodes + plan.resumed,
            decode_context=self._context + plan.resumed_context,
        )
        plan.step_s = self.slowdown * (step_s + plan.loading_s)
        plan.growth_s = self.slowdown * self.profile.e * self._decodes
        plan.steps = 1 if plan.chunks or preempted else self._steps_alike()
        self._plan = plan
        return plan.ends

    def cut(self, now: float) -> float:
        """A job has come while steps are under way: they end with the one in progress. When that is."""
        assert self._plan is not None
        if self._plan.steps > 1:
            self._plan.steps = self._plan.steps_until(now)
        return self._plan.ends

    def finish(self) -> Progress:
        """The steps that were begun have ended."""
        plan, self._plan = self._plan, None
        assert plan is not None
        self._steps += plan.steps
        self._context += self._decodes * plan.steps
        self._grow(self._steps)
        ended = []
        while self._endings and self._endings[0][0] <= self._steps:
            step, _, job = heappop(self._endings)
            if job.last_step == step:
                self._end_decoding(job)
                ended.append(job)
        first_tokens = []
        for job in plan.chunks:
            if job.computed == job.length:
                if not job.produced:
                    first_tokens.append(job)
                if self._begin_decoding(job):
                    ended.append(job)
        for job in ended:
            self._leave(job)
        return Progress(first_tokens, ended, self._cache.take_events())

    def _admit(self, plan: _Plan) -> None:
        while self._waiting and plan.room and len(self._running) < self.profile.max_seqs:
            job = self._waiting[0]
            if not self._adapters.has_room(job.adapter) or not self._place(job):
                return
            if self._adapters.start(job.adapter):
                plan.loading_s += self._adapter_load_s
            self._waiting.popleft()
            self.waiting_tokens -= job.prompt_tokens
            self._admitted += 1
            job.order = self._admitted
            self._running[job] = self._prefilling[job] = None
            if job.cached_tokens is None:
                job.cached_tokens = job.computed
            self._compute(job, plan)

    def _place(self, job: Job) -> bool:
        """Take the blocks of all its tokens, if there are enough."""
        cached = self._cache.find(job.chain[: (job.length - 1) // self.block_tokens])
        fresh = -(-job.length // self.block_tokens) - len(cached)
        reserve = self._reserve if self._running else 0
        if self._cache.available(beside=cached) < fresh + reserve:
            return False
        self._cache.share(cached)
        job.blocks = cached + self._cache.allocate(fresh)
        job.computed = len(cached) * self.block_tokens
        job.filled = len(cached)
        return True

    def _compute(self, job: Job, plan: _Plan) -> None:
        chunk = min(job.length - job.computed, plan.room)
        if chunk > 0:
            plan.add(job, chunk)
            job.computed += chunk
            self._fill(job, job.computed // self.block_tokens)

    def _fill(self, job: Job, end: int) -> None:
        """Its blocks up to `end` are full, and can be found if their ids are known."""
        end, first = min(end, len(job.chain)), job.filled
        if end > first:
            ids = tuple(job.chain[first:end])
            parent = job.chain[first - 1] if first else None
            self._cache.fill(job.blocks[first:end], BlockStored(ids, parent, (), self.block_tokens, ()))
            job.filled = end

    # Decoding: a job takes one token in each step; when it needs a block and when it ends is known beforehand.

    def _begin_decoding(self, job: Job) -> bool:
        """Its first token is out, or the next one after a preemption. Whether that was the last."""
        job.produced += 1
        job.length += 1
        del self._prefilling[job]
        if job.produced == job.output_tokens:
            return True
        job.decoding_since = self._steps
        job.last_step = self._steps + job.output_tokens - job.produced
        self._decodes += 1
        self._context += job.length
        heappush(self._endings, (job.last_step, job.order, job))
        self._foresee_growth(job)
        return False

    def _end_decoding(self, job: Job) -> None:
        done = self._steps - (job.decoding_since or 0)
        job.produced += done
        job.length += done
        job.decoding_since, job.last_step = None, -1
        self._decodes -= 1
        self._context -= job.length
        self._fill(job, (job.length - 1) // self.block_tokens)

    def _foresee_growth(self, job: Job) -> None:
        # In the first step after `decoding_since` it has `length` tokens, in the next one more.
        room = len(job.blocks) * self.block_tokens - job.length
        heappush(self._growths, ((job.decoding_since or 0) + room + 2, job.order, job))

    def _grow(self, step: int) -> bool:
        """Blocks for the tokens of decodes up to this step. Whether the youngest had to go for that."""
        preempted = False
        while self._growths and self._growths[0][0] <= step:
            _, order, job = heappop(self._growths)
            if job.decoding_since is None or job.order != order:
                continue
            self._fill(job, len(job.blocks))
            while job in self._running and not self._cache.available():
                self._preempt(next(reversed(self._running)))
                preempted = True
            if job in self._running:
                job.blocks += self._cache.allocate(1)
                self._foresee_growth(job)
        return preempted

    def _preempt(self, job: Job) -> None:
        if job.decoding_since is not None:
            self._end_decoding(job)
        self._prefilling.pop(job, None)
        self._leave(job)
        job.blocks, job.computed = [], 0
        self._waiting.appendleft(job)
        self.waiting_tokens += job.prompt_tokens

    def _leave(self, job: Job) -> None:
        del self._running[job]
        self._adapters.end(job.adapter)
        self._cache.release(job.blocks)

    def _steps_alike(self) -> int:
        """Decode steps until one may differ: an answer ends, or a block may be missing."""
        while self._endings and self._endings[0][2].last_step != self._endings[0][0]:
            heappop(self._endings)
        steps = self._endings[0][0] - self._steps
        if self._cache.available() < self._decodes * (steps // self.block_tokens + 1):
            return max(1, min(steps, self._growths[0][0] - 1 - self._steps))
        return steps
