"""The cluster: users, pickers, workers and the time between them, as events in one queue."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random

from picker.admission.settings import AdmissionSettings
from picker.fleet.inflight import Booking
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import find
from picker.simulation.discrete.engine import IDLE, DiscreteEngine, Job, Progress
from picker.simulation.discrete.gateway import Away, Change, Facts, Gateway, Placed, Report
from picker.simulation.discrete.outcome import FAILED, Load, Outcome, Request
from picker.simulation.discrete.slo import Slo
from picker.simulation.discrete.workload import Ask, Source
from picker.simulation.engine import DoesNotFit
from picker.simulation.kv_cache import BlockStored, CacheEvent
from picker.simulation.profiles import Profile

Tick = Callable[[], None]
_FEW = 300
ADAPTER_SLOTS = 4
"""LoRA adapters that a simulated worker holds at once."""
DISPATCH_S = 0.01
"""How often a picker looks whether those that wait can go."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A worker takes `factor` times as long from `at` on, for `seconds`; without a factor it dies and comes back."""

    worker: int
    at: float
    seconds: float
    factor: float | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """What stands between the users and their answers.

    model: what the pickers assume of a worker; None for the profile's own constants.
    metrics_s: how often a worker's load is published, in seconds; event_delay_s: how long a KV event takes to a picker.
    pickers: processes, to which requests go in turn; share_s: how often they tell one another what they have in flight,
    None for never. faults: see `Fault`.
    """

    profile: Profile
    workers: int = 16
    policy: str = "expected-delay"
    model: WorkerModel | None = None
    pickers: int = 1
    metrics_s: float = 1.0
    event_delay_s: float = 0.1
    share_s: float | None = 0.08
    faults: Sequence[Fault] = ()
    admission: AdmissionSettings | None = None


@dataclass(frozen=True, slots=True)
class Patience:
    """When to give a run up: more than this share of the requests that are expected have missed the objective.

    In a closed loop, where their number is not known, when three times that share of those so far has.
    """

    slo: Slo
    most_missed: float


@dataclass(slots=True, eq=False)
class _Exchange:
    """A request at a worker. `first_token_at` is None until there was one."""

    ask: Ask
    gateway: Gateway
    booking: Booking
    worker: _Worker
    first_token_at: float | None = None


_NOTHING = Report(0, 0, 0, 0, 0.0, 0, 0, 0, 0, 0)


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker. `wake` numbers the plans of its engine: what was foreseen for an earlier one is void."""

    number: int
    engine: DiscreteEngine
    epoch: int = 1
    wake: int = 0
    beat: int = 0
    is_alive: bool = True
    copies: Counter[int] = field(default_factory=Counter)
    exchanges: dict[Job, _Exchange] = field(default_factory=dict)
    looked_up: int = 0
    reused: int = 0
    generated: int = 0
    finished: int = 0
    first_tokens: int = 0
    report: Report = _NOTHING

    def observe(self, progress: Progress) -> None:
        """A step has ended: what the engine's metrics say until the next one does."""
        engine = self.engine
        self.looked_up += sum(job.prompt_tokens for job in progress.first_tokens)
        self.reused += sum(job.cached_tokens or 0 for job in progress.first_tokens)
        self.generated += sum(job.output_tokens for job in progress.ended)
        self.finished += len(progress.ended)
        self.first_tokens += len(progress.first_tokens)
        self.report = Report(
            self.beat, engine.running, engine.waiting, engine.waiting_tokens, engine.kv_used,
            self.looked_up, self.reused, self.generated, self.finished, self.first_tokens,
        )  # fmt: skip


def model_of(profile: Profile) -> WorkerModel:
    """What a picker assumes of a worker when it is configured with the profile's constants."""
    return WorkerModel(
        step_s=profile.a,
        prefill_s_per_token=profile.b,
        prefill_s_per_token2=profile.q,
        decode_s_per_request=profile.d,
        decode_s_per_context_token=profile.e,
        batch_tokens=profile.max_batch_tokens,
    )


def simulate(
    cluster: Cluster, source: Source, seed: int, patience: Patience | None = None, tick: Tick | None = None
) -> Outcome:
    """Runs it to the end. The same arguments give the same outcome. `tick` is called for each request that ends."""
    return _Run(cluster, source, seed, patience, tick).go()


class _Run:
    def __init__(self, cluster: Cluster, source: Source, seed: int, patience: Patience | None, tick: Tick | None):
        self._cluster = cluster
        self._source = source
        self._patience = patience
        self._tick = tick
        self._rng = Random(f"cluster {seed}")
        self._cold = model_of(cluster.profile)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._workers = [_Worker(number, self._engine()) for number in range(cluster.workers)]
        self._gateways = [self._gateway(number, seed) for number in range(cluster.pickers)]
        self._turn = itertools.cycle(self._gateways)
        self._requests: list[Request] = []
        self._load: list[Load] = []
        self._open = 0
        self._missed = 0
        self._judged = 0
        self._ticking: set[Gateway] = set()

    def go(self) -> Outcome:
        for ask in self._source.first():
            self._expect(ask)
        for worker in self._workers:
            self._at(self._rng.uniform(0.0, self._cluster.metrics_s), self._publish, worker)
        self._at(0.0, self._record)
        if self._cluster.share_s is not None and len(self._gateways) > 1:
            self._at(self._cluster.share_s, self._share, self._cluster.share_s)
        for fault in self._cluster.faults:
            self._at(fault.at, self._break, fault)
        while self._open and not self._is_hopeless():
            now, _, act, arguments = heappop(self._events)
            act(now, *arguments)
        return Outcome(self._requests, self._load, is_whole=not self._open)

    def _at(self, time: float, act: Callable[..., None], *arguments: object) -> None:
        heappush(self._events, (time, next(self._numbers), act, arguments))

    def _is_hopeless(self) -> bool:
        patience, expected = self._patience, self._source.expected
        if patience is None:
            return False
        if expected is not None:
            return self._missed > patience.most_missed * expected
        # Nobody knows how many requests users will have made; a steady state does not get three times better.
        return self._judged >= _FEW and self._missed > 3 * patience.most_missed * self._judged

    # Users.

    def _expect(self, ask: Ask) -> None:
        self._open += 1
        self._at(ask.at, self._arrive, ask)

    def _arrive(self, now: float, ask: Ask) -> None:
        gateway = next(self._turn)
        blocks = ask.chain[: ask.prompt_tokens // self._source.block_tokens]
        outcome = gateway.route(ask, blocks, self._source.block_tokens, now)
        if outcome is not None:
            self._go(now, gateway, ask, outcome)
        elif gateway not in self._ticking:
            self._ticking.add(gateway)
            self._at(now + DISPATCH_S, self._dispatch, gateway)

    def _dispatch(self, now: float, gateway: Gateway) -> None:
        for ask, outcome in gateway.dispatch(now):
            self._go(now, gateway, ask, outcome)
        if gateway.waiting:
            self._at(now + DISPATCH_S, self._dispatch, gateway)
        else:
            self._ticking.remove(gateway)

    def _go(self, now: float, gateway: Gateway, ask: Ask, outcome: Placed | Away) -> None:
        if isinstance(outcome, Away):
            self._end(now, ask, None, retry_s=max(1, outcome.retry_after_s))
            return
        # As Envoy does: the next endpoint of the list where one cannot be reached.
        worker = next((w for w in (self._workers[n] for n in outcome.workers) if w.is_alive), None)
        if worker is None or not self._submit(now, _Exchange(ask, gateway, outcome.booking, worker)):
            gateway.release(outcome.booking, False, now)
            self._end(now, ask, None)

    def _submit(self, now: float, exchange: _Exchange) -> bool:
        ask, worker = exchange.ask, exchange.worker
        job = Job(ask.prompt_tokens, ask.output_tokens, ask.chain, ask.adapter)
        try:
            worker.engine.submit(job)
        except DoesNotFit:
            return False
        worker.exchanges[job] = exchange
        self._plan(worker, worker.engine.begin(now) if worker.engine.is_idle else worker.engine.cut(now))
        return True

    def _end(
        self, now: float, ask: Ask, exchange: _Exchange | None, cached_tokens: int = 0, retry_s: float | None = None
    ) -> None:
        """An exchange is over; without one the request has failed, and may be told when to come back."""
        first = FAILED if exchange is None or exchange.first_token_at is None else exchange.first_token_at
        request = Request(
            at=ask.at,
            ttft_s=first - ask.at,
            decode_s=now - first if first < FAILED else 0.0,
            cold_s=_cold_s(self._cluster.profile, ask.prompt_tokens),
            prompt_tokens=ask.prompt_tokens,
            output_tokens=ask.output_tokens,
            cached_tokens=cached_tokens,
            worker=exchange.worker.number if exchange else -1,
            kind=ask.kind,
            is_measured=ask.measured,
        )
        self._requests.append(request)
        self._open -= 1
        if self._patience and ask.measured:
            self._judged += 1
            self._missed += not request.meets(self._patience.slo)
        if self._tick:
            self._tick()
        following = self._source.after(ask, now) if retry_s is None else self._source.again(ask, now + retry_s)
        if following:
            self._expect(following)

    # Workers.

    def _engine(self) -> DiscreteEngine:
        return DiscreteEngine(
            self._cluster.profile, self._source.block_tokens, ADAPTER_SLOTS, self._cold.adapter_load_s
        )

    def _plan(self, worker: _Worker, ends: float) -> None:
        worker.wake += 1
        if ends < IDLE:
            self._at(ends, self._step_ended, worker, worker.wake)

    def _step_ended(self, now: float, worker: _Worker, wake: int) -> None:
        if wake != worker.wake:
            return
        progress = worker.engine.finish()
        for job in progress.first_tokens:
            worker.exchanges[job].first_token_at = now
        self._announce(now, worker, progress)
        worker.observe(progress)
        self._plan(worker, worker.engine.begin(now))
        for job in progress.ended:
            exchange = worker.exchanges.pop(job)
            exchange.gateway.release(exchange.booking, True, now)
            self._end(now, exchange.ask, exchange, job.cached_tokens or 0)

    def _announce(self, now: float, worker: _Worker, progress: Progress) -> None:
        if not progress.events:
            return
        due = now + self._cluster.event_delay_s
        for change in _changes(progress.events, worker.copies):
            for gateway in self._gateways:
                gateway.announce(worker.number, change, due)

    def _publish(self, now: float, worker: _Worker) -> None:
        if worker.is_alive:
            worker.beat += 1
            worker.report = replace(worker.report, beat=worker.beat)
            for gateway in self._gateways:
                gateway.report(worker.number, worker.report, now)
        self._at(now + self._cluster.metrics_s, self._publish, worker)

    def _record(self, now: float) -> None:
        engines = [worker.engine for worker in self._workers]
        self._load.append(Load(now, tuple(e.running for e in engines), tuple(e.waiting for e in engines)))
        self._at(now + 1.0, self._record)

    # Faults.

    def _break(self, now: float, fault: Fault) -> None:
        worker = self._workers[fault.worker]
        self._at(now + fault.seconds, self._mend, fault)
        if fault.factor is not None:
            worker.engine.slowdown = fault.factor
            return
        self._kill(now, worker)

    def _kill(self, now: float, worker: _Worker) -> None:
        worker.is_alive = False
        worker.wake += 1
        broken, worker.exchanges = worker.exchanges, {}
        for exchange in broken.values():
            exchange.gateway.release(exchange.booking, False, now)
            exchange.first_token_at = None
            self._end(now, exchange.ask, None)

    def _mend(self, now: float, fault: Fault) -> None:
        worker = self._workers[fault.worker]
        if fault.factor is not None:
            worker.engine.slowdown = 1.0
            return
        self._revive(now, worker, self._engine())

    def _revive(self, now: float, worker: _Worker, engine: DiscreteEngine) -> None:
        worker.engine, worker.copies, worker.is_alive = engine, Counter(), True
        worker.epoch += 1
        worker.report = _NOTHING
        for gateway in self._gateways:
            gateway.admit(worker.number, self._facts(worker), now)

    # Pickers.

    def _gateway(self, number: int, seed: int) -> Gateway:
        cluster = self._cluster
        policy = find(cluster.policy)
        gateway = Gateway(
            policy,
            cluster.model or self._cold,
            cluster.workers,
            Random(f"picker {number} {seed}"),
            cluster.admission,
        )
        for worker in self._workers:
            gateway.admit(worker.number, self._facts(worker), 0.0)
        return gateway

    def _share(self, now: float, every_s: float) -> None:
        for gateway in self._gateways:
            gateway.catch_up(now)
        for gateway in self._gateways:
            others = [other for other in self._gateways if other is not gateway]
            gateway.hear(others, now)
            gateway.tell(others, now)
        self._at(now + every_s, self._share, every_s)

    def _facts(self, worker: _Worker) -> Facts:
        name = f"w{worker.number}"
        endpoint = f"10.0.{worker.number >> 8}.{worker.number & 255}:8000"
        epoch = worker.epoch * len(self._workers) + worker.number
        return Facts(name, epoch, endpoint, self._cluster.profile.kv_tokens, self._source.adapters, ADAPTER_SLOTS)


def _cold_s(profile: Profile, tokens: int) -> float:
    """What a prompt takes on an idle worker that has nothing of it cached."""
    steps = -(-tokens // profile.max_batch_tokens)
    return profile.a * steps + profile.b * tokens + profile.q * tokens * tokens / 2


def _changes(events: Sequence[CacheEvent], copies: Counter[int]) -> list[Change]:
    """As an agent publishes them: of several copies of a block the first counts that comes and the last that goes."""
    changes: list[Change] = []
    gone: list[int] = []
    for event in events:
        if isinstance(event, BlockStored):
            if gone:
                changes.append(Change(removed=tuple(gone)))
                gone = []
            copies.update(event.block_hashes)
            changes.append(Change(stored=event.block_hashes))
        else:
            for block in getattr(event, "block_hashes", ()):
                copies[block] -= 1
                if not copies[block]:
                    del copies[block]
                    gone.append(block)
    if gone:
        changes.append(Change(removed=tuple(gone)))
    return changes
