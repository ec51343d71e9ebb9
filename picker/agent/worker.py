"""What watches one worker, and publishes what it serves, holds and does.

/health, /metrics, /v1/models -> Engine -> Lifecycle ------------+-> Publisher -> Redis
KV events over ZMQ or HTTP -> Subscriber or Poller -> BlockTable -+
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

import httpx
import msgspec
import structlog
import zmq
import zmq.asyncio

from picker.agent import blocks, describe, loads, subscriber
from picker.agent.blocks import BlockTable
from picker.agent.config import WorkerConfig
from picker.agent.engine import Engine, EngineSettings, EngineStatus
from picker.agent.engines.kind import EventSource
from picker.agent.events import Batch
from picker.agent.lifecycle import Finding, Lifecycle
from picker.agent.loads import LoadReport
from picker.agent.metrics import Metrics, Which
from picker.agent.notices import Notices
from picker.agent.poller import Poller, PollerSettings
from picker.agent.publisher import Publisher, PublisherSettings, PublisherStatistics
from picker.agent.subscriber import Subscriber, SubscriberSettings
from picker.agent.tokenizers import TokenizerOffers, WorkerTokenizer
from picker.redisview.records import WorkerRecord, WorkerState

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """What operators need not set. `max_blocks`: engine blocks followed for each worker (docs/engines.md: bytes each).

    `report_fresh_s`: so long a load report of the engine's own counts; SGLang repeats one each second.
    `first_look_s`: so long an agent that begins waits for an engine to say anything; pickers remember workers as long.
    `offer_tokenizer_s`, `renew_tokenizer_s`: how soon its tokenizer is offered, and how often that is renewed.
    """

    max_blocks: int = 1_000_000
    restart_pause_s: float = 1.0
    tolerated_timeouts: int = 1
    report_fresh_s: float = 3.0
    first_look_s: float = 30.0
    offer_tokenizer_s: float = 1.0
    renew_tokenizer_s: float = 300.0
    engine: EngineSettings = field(default_factory=EngineSettings)
    subscriber: SubscriberSettings = field(default_factory=SubscriberSettings)
    poller: PollerSettings = field(default_factory=PollerSettings)
    publisher: PublisherSettings = field(default_factory=PublisherSettings)


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """One worker at one moment. `subscriber` is None where no KV events are followed; `has_metrics`: its load is known,
    `has_kv_used`: and in it how full its cache is.
    """

    state: WorkerState
    reason: str
    epoch: int
    ignored_events: int
    blocks: blocks.Statistics
    subscriber: subscriber.Statistics | None
    publisher: PublisherStatistics
    has_metrics: bool = False
    has_kv_used: bool = False


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
        offers: TokenizerOffers | None = None,
    ) -> None:
        self._config = config
        self._offers = offers
        self._tokenizer = WorkerTokenizer(
            config.name, config.tokenizer, settings.offer_tokenizer_s, settings.renew_tokenizer_s
        )
        self._lifecycle = lifecycle
        self._context = context
        self._publisher = publisher
        self._settings = settings
        which = Which(config.rank, config.model)
        self._engine = Engine(client, config.url, which, settings.engine, config.engine, config.headers())
        self._is_draining = config.draining
        self._finding = Finding(WorkerState.LOADING)
        self._metrics: Metrics | None = None
        self._residency = describe.Residency()
        self._source: EventSource | None = None
        self._subscriber: Subscriber | Poller | None = None
        self._following: asyncio.Task[None] | None = None
        self._loads: str | None = None
        self._following_loads: asyncio.Task[None] | None = None
        self._report: LoadReport | None = None
        self._reported_at = float("-inf")
        self._ignored_events = 0
        self._notices = Notices(config.name)
        self._table = BlockTable("", settings.max_blocks)
        self._record = WorkerRecord(
            worker=config.name,
            epoch=secrets.randbits(63),
            endpoint=config.endpoint,
            rank=config.rank or 0,
            gpu=config.gpu,
            publishes_kv=False,
            labels=config.labels,
        )

    def __repr__(self) -> str:
        return f"<WorkerAgent {self._config.name}: {self._finding.state}>"

    def statistics(self) -> WorkerStatistics:
        """Named numbers for metrics and tests."""
        return WorkerStatistics(
            state=self._state(),
            reason=self._finding.reason,
            epoch=self._record.epoch,
            ignored_events=self._ignored_events,
            blocks=self._table.statistics(),
            subscriber=self._subscriber.statistics() if self._subscriber else None,
            publisher=self._publisher.statistics(),
            has_metrics=self._metrics is not None,
            has_kv_used=self._metrics is not None and self._metrics.kv_used is not None,
        )

    async def run(self, probe_interval_s: float) -> None:
        """Until cancelled."""
        self._publisher.begin(self._record)
        async with asyncio.TaskGroup() as tasks:
            # Nothing is said before the first look: an agent that comes back would call a worker that serves unready,
            # and one that has many would take the whole pool away for a moment.
            self._observe(await self._first_look(probe_interval_s), tasks)
            tasks.create_task(self._publisher.run())
            if self._offers is not None:
                tasks.create_task(self._tokenizer.offer(self._offers))
            while True:
                await asyncio.sleep(probe_interval_s)
                self._observe(await self._engine.probe(), tasks)

    async def _first_look(self, probe_interval_s: float) -> EngineStatus:
        """The first one that says anything. Until then what an agent before us has said holds."""
        over_at = time.monotonic() + self._settings.first_look_s
        while True:
            status = await self._engine.probe()
            if not status.is_mute or time.monotonic() >= over_at:
                return status
            await asyncio.sleep(probe_interval_s)

    def relieve(self) -> None:
        """This agent ends and the worker does not."""
        self._publisher.relieve()

    def drain(self, is_draining: bool) -> None:
        """Whether the worker gets no new requests; those that it has it keeps."""
        self._is_draining = is_draining
        self._tell(msgspec.structs.replace(self._record, state=self._state()))
        self._notices.state(self._record, self._finding, self._source)

    def _state(self) -> WorkerState:
        return WorkerState.DRAINING if self._is_draining else self._finding.state

    # -- what probing tells --------------------------------------------------------------------------------------

    def _observe(self, status: EngineStatus, tasks: asyncio.TaskGroup) -> None:
        before, self._finding = self._finding, self._lifecycle.observe(status, time.monotonic())
        self._metrics = status.metrics
        if self._finding.begins_anew:
            self._residency = describe.Residency()
        if status.models and not self._config.tokenizer:
            self._tokenizer.root = status.models.root
        record = describe.facts(self._record, status, self._state(), self._residency)
        record = msgspec.structs.replace(record, tokenizer=self._tokenizer.digest)
        self._follow(self._source_of(status), record, tasks)
        self._follow_loads(status.loads, tasks)
        if self._finding.is_emptied:
            self._table.clear()
            self._publisher.cleared()
        self._publish_load()
        self._notices.metrics(status.metrics is not None or not self._engine.kind.metrics_pages, self._finding)
        self._notices.engine(status, self._config.rank)
        if (before.state, before.reason) != (self._finding.state, self._finding.reason):
            self._notices.state(self._record, self._finding, self._source)

    def _source_of(self, status: EngineStatus) -> EventSource | None:
        if not self._config.kv_events:
            return status.source
        if status.models is None:
            return None
        return EventSource(self._config.kv_events, self._config.kv_replay, is_bound_here="*" in self._config.kv_events)

    def _publish_load(self) -> None:
        report = self._report if time.monotonic() - self._reported_at < self._settings.report_fresh_s else None
        if self._metrics is not None or report is not None:
            self._publisher.load(describe.load(self._metrics or Metrics(), self._finding, report))

    def _take_report(self, report: LoadReport) -> None:
        self._report, self._reported_at = report, time.monotonic()
        self._publish_load()

    def _begin(self, record: WorkerRecord) -> None:
        self._record = msgspec.structs.replace(record, epoch=secrets.randbits(63))
        # The chain begins with the name that engines give first; others are aliases of the same weights.
        self._table = BlockTable(record.models[0] if record.models else "", self._settings.max_blocks)
        self._publisher.begin(self._record)

    def _tell(self, record: WorkerRecord) -> None:
        if record != self._record:
            self._record = record
            self._publisher.facts(record)

    # -- what is followed ----------------------------------------------------------------------------------------

    def _follow(self, source: EventSource | None, record: WorkerRecord, tasks: asyncio.TaskGroup) -> None:
        """Begins anew where the engine has, or where its events come from elsewhere."""
        if source == self._source and not self._finding.begins_anew:
            self._tell(record)
            return
        if self._following is not None:
            self._following.cancel()
        self._source, self._subscriber, self._following = source, None, None
        # Whether a page hands out events shows with the first one.
        publishes_kv = source is not None and not source.is_polled
        self._begin(msgspec.structs.replace(record, publishes_kv=publishes_kv))
        if source is not None:
            self._subscriber = self._follower(source)
            self._following = tasks.create_task(self._run(self._subscriber, source))

    def _follower(self, source: EventSource) -> Subscriber | Poller:
        if source.is_polled:
            return Poller(self._engine.server, source.events, self, self._settings.poller)
        settings = self._settings.subscriber
        return Subscriber(self._context, source.events, source.replay, self, settings, source.is_bound_here)

    async def _run(self, follower: Subscriber | Poller, source: EventSource) -> None:
        try:
            await follower.run()
        except zmq.ZMQError as error:
            advice = "set kv_events, and kv_replay, to addresses that can be reached from here"
            self._notices.once("kv_events_unreachable", endpoint=source.events, reason=str(error), advice=advice)
            self._tell(msgspec.structs.replace(self._record, publishes_kv=False))

    def _follow_loads(self, endpoint: str | None, tasks: asyncio.TaskGroup) -> None:
        if endpoint == self._loads:
            return
        if self._following_loads is not None:
            self._following_loads.cancel()
        self._loads, self._following_loads = endpoint, None
        if endpoint is not None:
            self._following_loads = tasks.create_task(loads.follow(self._context, endpoint, self._take_report))

    # -- what the events tell ------------------------------------------------------------------------------------

    def batch(self, batch: Batch) -> None:
        """Publishes what a batch changed."""
        self._ignored_events += batch.ignored
        if batch.rank is not None and self._config.rank not in (None, batch.rank):
            return
        if not self._record.publishes_kv:
            self._tell(msgspec.structs.replace(self._record, publishes_kv=True))
        self._table.begin_step()
        for event in batch.events:
            delta = self._table.apply(event)
            if delta.cleared:
                self._publisher.cleared()
            self._publisher.removed(delta.removed)
            self._publisher.stored(delta.stored)
        self._notices.blocks(self._table.statistics().counters)

    def lost(self) -> None:
        """Begins a new epoch: what was published may be wrong."""
        _log.warning("kv_events_lost", worker=self._config.name)
        self._begin(self._record)

    def restarted(self) -> None:
        """Begins a new epoch: the engine's cache is empty."""
        _log.info("engine_restarted", worker=self._config.name)
        self._begin(self._record)
