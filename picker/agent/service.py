"""`picker agent`: watches engines and publishes what they serve, hold and do.

    /health, /metrics, /v1/models -> Engine -> Lifecycle ---+-> Publisher -> Redis
    ZMQ events, replay            -> Subscriber -> BlockTable -+

Each worker has its tasks and state to itself; one that fails is begun anew after a pause, and the others do not notice.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from dataclasses import dataclass, field

import httpx
import msgspec
import structlog
import zmq.asyncio

from picker.agent import blocks, subscriber
from picker.agent.blocks import BlockTable
from picker.agent.config import AgentConfig, WorkerConfig
from picker.agent.engine import Engine, EngineSettings, EngineStatus, EventSource, Models
from picker.agent.events import Batch
from picker.agent.lifecycle import Finding, Lifecycle, LifecycleSettings
from picker.agent.publisher import Load, Publisher, PublisherSettings, PublisherStatistics
from picker.agent.subscriber import Subscriber, SubscriberSettings
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import WorkerRecord, WorkerState

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What operators need not set. `max_blocks`: engine blocks followed for each worker, about 350 bytes each."""

    max_blocks: int = 1_000_000
    restart_pause_s: float = 1.0
    tolerated_timeouts: int = 1
    engine: EngineSettings = field(default_factory=EngineSettings)
    subscriber: SubscriberSettings = field(default_factory=SubscriberSettings)
    publisher: PublisherSettings = field(default_factory=PublisherSettings)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker at one moment. `subscriber` is None where no KV events are followed."""

    state: WorkerState
    reason: str
    epoch: int
    ignored_events: int
    blocks: blocks.Statistics
    subscriber: subscriber.Statistics | None
    publisher: PublisherStatistics


class WorkerAgent:
    """What watches one worker. Made for one `run`."""

    def __init__(
        self,
        config: WorkerConfig,
        lifecycle: Lifecycle,
        client: httpx.AsyncClient,
        context: zmq.asyncio.Context,
        publisher: Publisher,
        settings: AgentSettings,
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._context = context
        self._publisher = publisher
        self._settings = settings
        self._engine = Engine(client, config.url, config.rank, settings.engine)
        self._finding = Finding(WorkerState.LOADING)
        self._source: EventSource | None = None
        self._subscriber: Subscriber | None = None
        self._following: asyncio.Task[None] | None = None
        self._ignored_events = 0
        self._warned: set[str] = set()
        self._table = BlockTable("", settings.max_blocks)
        self._record = WorkerRecord(
            worker=config.name,
            epoch=secrets.randbits(63),
            endpoint=config.endpoint,
            rank=config.rank or 0,
            engine="vllm",
            publishes_kv=False,
            labels=config.labels,
        )

    def __repr__(self) -> str:
        return f"<WorkerAgent {self._config.name}: {self._finding.state}>"

    def statistics(self) -> WorkerStatistics:
        """Named numbers for metrics and tests."""
        return WorkerStatistics(
            self._finding.state,
            self._finding.reason,
            self._record.epoch,
            self._ignored_events,
            self._table.statistics(),
            self._subscriber.statistics() if self._subscriber else None,
            self._publisher.statistics(),
        )

    async def run(self, probe_interval_s: float) -> None:
        """Until cancelled."""
        self._publisher.begin(self._record)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publisher.run())
            while True:
                status = await self._engine.probe()
                self._observe(status, tasks)
                await asyncio.sleep(probe_interval_s)

    # -- what probing tells --------------------------------------------------------------------------------------

    def _observe(self, status: EngineStatus, tasks: asyncio.TaskGroup) -> None:
        now = time.monotonic()
        before, self._finding = self._finding, self._lifecycle.observe(status, now)
        source = self._source_of(status)
        record = self._describe(status, source)
        if self._finding.begins_anew or source != self._source:
            self._unfollow()
            self._begin(record)
            self._follow(source, tasks)
        elif record != self._record:
            self._record = record
            self._publisher.facts(record)
        if self._finding.is_emptied:
            self._table.clear()
            self._publisher.cleared()
        self._publish_load(status)
        self._warn_of_ranks(status)
        if (before.state, before.reason) != (self._finding.state, self._finding.reason):
            self._log_state()

    def _source_of(self, status: EngineStatus) -> EventSource | None:
        if self._config.kv_events:
            return EventSource(self._config.kv_events, self._config.kv_replay) if status.models else None
        return status.source

    def _describe(self, status: EngineStatus, source: EventSource | None) -> WorkerRecord:
        """A worker that is away keeps what was known of it."""
        models = status.models or Models(self._record.models, self._record.adapters, self._record.context_limit_tokens)
        capacity = status.metrics.kv_capacity_tokens if status.metrics else 0
        return msgspec.structs.replace(
            self._record,
            state=self._finding.state,
            version=status.version or self._record.version,
            models=models.names,
            adapters=models.adapters,
            kv_capacity_tokens=capacity or self._record.kv_capacity_tokens,
            context_limit_tokens=models.context_limit_tokens,
            publishes_kv=source is not None,
        )

    def _publish_load(self, status: EngineStatus) -> None:
        if status.metrics is None:
            return
        self._publisher.load(
            Load(
                running=status.metrics.running,
                waiting=status.metrics.waiting,
                waiting_tokens=status.metrics.waiting_tokens,
                kv_used=status.metrics.kv_used,
                prefill_tokens_per_s=self._finding.prefill_tokens_per_s,
                decode_tokens_per_s=self._finding.decode_tokens_per_s,
                looked_up_tokens=status.metrics.counters.looked_up_tokens,
                reused_tokens=status.metrics.counters.reused_tokens,
                generated_tokens=status.metrics.counters.generation_tokens,
                finished=status.metrics.counters.successes,
            )
        )

    def _begin(self, record: WorkerRecord) -> None:
        self._record = msgspec.structs.replace(record, epoch=secrets.randbits(63))
        # The chain begins with the name that engines give first; others are aliases of the same weights.
        self._table = BlockTable(record.models[0] if record.models else "", self._settings.max_blocks)
        self._publisher.begin(self._record)

    def _follow(self, source: EventSource | None, tasks: asyncio.TaskGroup) -> None:
        self._source = source
        if source is not None:
            self._subscriber = Subscriber(self._context, source.events, source.replay, self, self._settings.subscriber)
            self._following = tasks.create_task(self._subscriber.run())

    def _unfollow(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._subscriber = self._following = None

    def _log_state(self) -> None:
        _log.info(
            "worker_state",
            worker=self._config.name,
            state=self._finding.state.value,
            reason=self._finding.reason,
            models=self._record.models,
            kv_events=self._source.events if self._source else None,
        )

    # -- what the subscriber tells -------------------------------------------------------------------------------

    def batch(self, batch: Batch) -> None:
        """Publishes what a batch changed."""
        self._ignored_events += batch.ignored
        if batch.rank is not None and self._config.rank not in (None, batch.rank):
            return
        for event in batch.events:
            delta = self._table.apply(event)
            if delta.cleared:
                self._publisher.cleared()
            self._publisher.removed(delta.removed)
            self._publisher.stored(delta.stored)
        self._warn_of_blocks()

    def lost(self) -> None:
        """Begins a new epoch: what was published may be wrong."""
        _log.warning("kv_events_lost", worker=self._config.name)
        self._begin(self._record)

    def restarted(self) -> None:
        """Begins a new epoch: the engine's cache is empty."""
        _log.info("engine_restarted", worker=self._config.name)
        self._begin(self._record)

    # -- what operators should know ------------------------------------------------------------------------------

    def _warn_of_blocks(self) -> None:
        counters = self._table.statistics().counters
        if counters.bad_block_size or counters.bad_tokens or counters.refused:
            self._warn_once(
                "kv_events_not_indexed",
                block_size_not_a_multiple_of_16=counters.bad_block_size,
                tokens_do_not_fit_blocks=counters.bad_tokens,
                beyond_max_blocks=counters.refused,
            )

    def _warn_of_ranks(self, status: EngineStatus) -> None:
        if self._config.rank is None and status.metrics and len(status.metrics.ranks) > 1:
            self._warn_once("engine_has_ranks", advice="list a worker for each, with its rank: each has its own cache")

    def _warn_once(self, event: str, **fields: object) -> None:
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, worker=self._config.name, **fields)


class Agent:
    """All workers of one configuration."""

    def __init__(self, config: AgentConfig, settings: AgentSettings | None = None) -> None:
        """Raises BadRedisUrl."""
        self._config = config
        self._settings = settings or AgentSettings()
        self._keys = Keys(config.pool)
        self._redis = connect(config.redis)
        self._workers: dict[str, WorkerAgent] = {}

    def statistics(self) -> dict[str, WorkerStatistics]:
        """By name of the worker."""
        return {name: worker.statistics() for name, worker in self._workers.items()}

    async def run(self) -> None:
        """Until cancelled, or the process gets SIGTERM; then all workers are published as draining."""
        context = zmq.asyncio.Context()
        loop = asyncio.get_running_loop()
        try:
            # Engines are neighbours: a proxy from the environment is never meant for them.
            async with httpx.AsyncClient(trust_env=False) as client, asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._supervise(each, client, context)) for each in self._config.workers]
                loop.add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in running])
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            context.destroy(linger=0)
            await self._redis.aclose()

    async def _supervise(self, config: WorkerConfig, client: httpx.AsyncClient, context: zmq.asyncio.Context) -> None:
        while True:
            worker = self._workers[config.name] = self._worker(config, client, context)
            try:
                await worker.run(self._config.probe_interval_s)
            # A fault of ours in the code for one worker must not take the others down.
            except Exception as error:
                _log.error("worker_agent_failed", worker=config.name, error=_reason(error))
            await asyncio.sleep(self._settings.restart_pause_s)

    def _worker(self, config: WorkerConfig, client: httpx.AsyncClient, context: zmq.asyncio.Context) -> WorkerAgent:
        lifecycle = Lifecycle(LifecycleSettings(self._config.stall_after_s, self._settings.tolerated_timeouts))
        publisher = Publisher(self._redis, self._keys, self._settings.publisher)
        return WorkerAgent(config, lifecycle, client, context, publisher, self._settings)


def _reason(error: BaseException) -> str:
    """Types and messages of an error and of those it groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
