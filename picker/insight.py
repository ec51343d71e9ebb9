"""Everything by which people and machines see into a picker: decisions, their metrics, the debug port, the page.

`picker.server` builds one, hands its `observer` to the picks and lets `run` go on beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import structlog
from redis.asyncio import Redis

from picker.config import Config, Tls, host_and_port, redacted
from picker.config_checks import BadSetting
from picker.cordons import Cordons
from picker.debug.fleet import State
from picker.debug.page import Page
from picker.debug.port import DebugPort
from picker.debug.service import DebugService, Parts, Picks
from picker.events.recorder import Recorder
from picker.events.sink import Sink
from picker.fleet.view import View
from picker.observing import Observer, named_in
from picker.redisview.cordons import CordonRecords
from picker.redisview.decisions import DecisionStream
from picker.redisview.keys import Keys
from picker.replaying import deciding
from picker.telemetry.compat import Compatible
from picker.telemetry.decisions import DecisionMetrics
from picker.telemetry.http_server import serve
from picker.telemetry.log import set_level
from picker.telemetry.metrics import Metrics
from picker.telemetry.tracing import Tracing, tracing
from picker.telemetry.workers import NOBODY, lines, take
from picker.tls import credentials, ssl_context

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asks:
    """Whom to ask for what is not in the view: who decides, what is amiss, how many streams are open, what waits."""

    picks: Picks
    degraded: Callable[[], Mapping[str, bool]]
    streams: Callable[[], int]
    queues: Callable[[], Mapping[str, tuple[int, float]]]


class Insight:
    """One process's. Raises OSError where decisions cannot be written, BadSetting where traces cannot be sent."""

    def __init__(self, config: Config, view: View, metrics: Metrics, redis: Redis, keys: Keys):
        self._config = config
        self._view = view
        self._metrics = metrics
        self._recorder = Recorder(config.events, uuid4().hex[:8], named_in(config))
        self.observer = Observer(self._recorder, view, config.events.replayable)
        self._sink = self._writes(redis, keys)
        self._cordons = Cordons(CordonRecords(redis, keys), view)
        self._workers, self._modes = NOBODY, dict[str, bool]()
        metrics.add_lines(lambda: lines(self._workers))
        metrics.add_modes(lambda: self._modes)
        self._counted = DecisionMetrics(metrics.registry, self._recorder, config.metrics_workers)
        self._tracing = _traces(config, self._recorder)
        if config.metrics_compatible:
            metrics.registry.register(Compatible(config.pool, lambda: self._workers, self._counted, metrics))

    @property
    def dropped(self) -> int:
        """Decisions that could not be written."""
        return self._sink.dropped if self._sink else 0

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._cordons.run(), name="cordons")
            if self._sink:
                tasks.create_task(self._sink.run(), name="decisions")
            if self._tracing:
                tasks.create_task(self._tracing.run(), name="traces")

    def configure(self, config: Config) -> None:
        """Other settings from now on."""
        self._config = config
        if self._sink:
            self._sink.configure(deciding(config))

    def cordon(self, workers: frozenset[str]) -> None:
        """These are cordoned by a platform."""
        self._cordons.order(workers)

    @property
    def process(self) -> str:
        """What this picker is called in decisions and states."""
        return self._recorder.process

    def look(self, modes: dict[str, bool], now: float) -> None:
        """Takes what scrapes show: they are answered by other threads, which must not read what the loop changes."""
        self._workers, self._modes = take(self._view, now, self._config.metrics_workers), modes
        self._counted.keep({facts.worker for facts in self._workers.facts})

    async def open(self, exits: contextlib.AsyncExitStack, asks: Asks) -> None:
        """Listens. Requests need none of it: a port that is taken is no reason not to serve them."""
        settings = self._config.debug
        tls = Tls(cert=settings.cert, key=settings.key, client_ca=settings.client_ca) if settings.cert else None
        service = DebugService(self._parts(asks))
        if settings.listen:
            port = DebugPort(settings, service, credentials(tls) if tls else None)
            exits.push_async_callback(port.stop)
            await _try("debug.listen", settings.listen, port.start)
        if settings.page:
            await _try("debug.page", settings.page, lambda: self._open_page(exits, service, tls))

    async def _open_page(self, exits: contextlib.AsyncExitStack, service: DebugService, tls: Tls | None) -> None:
        settings = self._config.debug
        page = Page(service, settings.token_file, settings.page or "", asyncio.get_running_loop())
        host, port = host_and_port(settings.page or "")
        exits.callback(serve(host, port, page.answer, ssl_context(tls) if tls else None))

    def _writes(self, redis: Redis, keys: Keys) -> Sink | None:
        events = self._config.events
        stream = DecisionStream(redis, keys, events.stream_length) if events.stream_length else None
        if not (events.file or stream):
            return None
        return Sink(events, self._recorder, deciding(self._config), stream.append if stream else None)

    def _parts(self, asks: Asks) -> Parts:
        return Parts(
            self._view,
            self._recorder,
            asks.picks,
            self._cordons,
            State(
                self._config.pool,
                self._recorder.process,
                self._metrics.verdicts,
                asks.degraded,
                asks.streams,
                asks.queues,
            ),
            lambda: redacted(self._config),
            set_level,
        )


def _traces(config: Config, recorder: Recorder) -> Tracing | None:
    try:
        return tracing(config.traces, recorder) if config.traces else None
    except ModuleNotFoundError as error:
        raise BadSetting(f"traces: {error.name} is missing; it comes with: pip install 'envoy-picker[otel]'") from None
    except ImportError:
        # xds-protos brings old copies of some of these files; where they came last, they are the ones there.
        advice = "pip install --force-reinstall --no-deps opentelemetry-proto"
        raise BadSetting(
            f"traces: another package has replaced files of opentelemetry-proto; mend it with: {advice}"
        ) from None


async def _try(setting: str, address: str, start: Callable[[], Any]) -> None:
    try:
        await start()
    except OSError as error:
        log.error("not_listening", setting=setting, address=address, error=str(error), consequence="requests go on")
