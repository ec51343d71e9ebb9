"""`picker serve`: builds the parts and runs them. Read from top to bottom it is the way of a request.

Envoy -> ExtProcService -> Picker -> PromptReader -> decide -> View <- Feed <- Redis <- agents
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import structlog

from picker.allocator import keep_large_blocks
from picker.config import Config, Limits, Tls, host_and_port
from picker.config_source import ConfigSource
from picker.debug.health import Health, add_reflection
from picker.discovering import Discovering
from picker.extproc import access_log, eds, service
from picker.extproc.access_log import AccessLog, Outcome
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.eds import EndpointDiscovery
from picker.extproc.service import ExtProcService
from picker.fleet.breakers import Breakers
from picker.fleet.endpoints import networks
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.sharing import Sharing
from picker.fleet.view import CAPACITY, View
from picker.insight import Asks, Insight
from picker.offered_tokenizers import OfferedTokenizers
from picker.picking import Picker
from picker.platform.orders import Orders
from picker.platform.state import PickerState, State, workers
from picker.platform_link import PlatformLink, followed
from picker.ports import Port, port
from picker.prompts.reader import PromptReader
from picker.prompts.tokenizer import ModelTokenizer
from picker.quota_sharing import QuotaSharing
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.spending import Spending
from picker.redisview.tokenizers import TokenizerStore
from picker.reload import Reload
from picker.sizing import Sizing
from picker.telemetry.metrics import Metrics, ModelReadings, Readings
from picker.threads import SWITCH_INTERVAL_S
from picker.truth import TruthCheck

log = structlog.get_logger()

_SWEEP_EVERY_S = 0.2
_MUCH_LAG_EVENTS = 1000
_QUIET_S = 1.0
_LATE_S = 2.0
"""What a busy process may add to a wait."""
_READY_WITHOUT_FLEET_AFTER_S = 10.0


async def serve(config: Config, source: ConfigSource) -> None:
    """Runs a picker until SIGTERM or SIGINT. `source` is where `config` came from: it is read again when it changes.

    Raises BadSetting, BadTokenizer, OSError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_large_blocks()
    await Server(config, source).run()


class Server:
    """One picker process. `run` returns after SIGTERM or SIGINT and a drain."""

    def __init__(self, config: Config, source: ConfigSource):
        """Loads tokenizers. Raises BadTokenizer."""
        self._config = config
        self._source = source
        self._view = View(
            config.stale_after_s,
            reuse_window_s=config.prediction.window_s,
            failure_domain=config.failure_domain,
            breakers=Breakers(CAPACITY, **msgspec.structs.asdict(config.breaker)),
        )
        templates = {model: Path(path) for model, path in config.chat_templates.items()}
        tokenizers = {
            model: ModelTokenizer.load(Path(folder), templates.get(model))
            for model, folder in config.tokenizers.items()
        }
        self._metrics = Metrics()
        self._gauges: Readings = {}
        self._metrics.add_gauges(lambda: self._gauges)
        keys = Keys(config.pool)
        redis = connect(config.redis, keys)
        self._feed = Feed(redis, keys, self._view, FeedSettings(networks=networks(config.worker_networks)))
        self._discovering = Discovering(config, self._view)
        self._sharing = Sharing(redis, keys, self._view, self._feed.synced, self._feed.watch)
        self._reader = prompt_reader(tokenizers, config.limits)
        self._offered = OfferedTokenizers(config, self._view, self._reader, TokenizerStore(redis, keys))
        self._insight = Insight(config, self._view, self._metrics, redis, keys)
        self._observer = self._insight.observer
        self._picker = Picker(config, self._view, self._reader, self._metrics, self._is_blind, self._observer)
        self._budget = ByteBudget(config.limits.max_held_bytes)
        settings = Settings(
            body_timeout_s=config.limits.body_timeout_s,
            exchange_timeout_s=config.limits.exchange_timeout_s,
            max_body_bytes=config.limits.max_body_bytes,
            longest_pick_s=longest_pick_s(config),
            reveal_header=_reveal_header(config),
        )
        self._ext_proc = ExtProcService(self._picker, self._metrics, settings, self._budget, self._picker.turn_away)
        self._picker.admitting.cut = self._ext_proc.cut
        self._metrics.add_counts(
            "ext_proc_messages", "ext_proc messages, by kind.", ("direction", "kind"), self._ext_proc.messages
        )
        text = "ext_proc streams that have ended, by how the request's body came."
        self._metrics.add_counts("ext_proc_streams_ended", text, ("mode",), self._ext_proc.ended)
        self._health = Health()
        self._truth = TruthCheck(self._view, self._health, config.prediction)
        self._metrics.add_model_gauges(lambda: self._truth.readings)
        self._sizing = Sizing(config, self._view, self._picker.admitting.by_model, self._pickers)
        self._picker.asked = self._sizing.asked
        self._metrics.add_model_gauges(lambda: self._sizing.readings)
        self._waiting: ModelReadings = {}
        self._metrics.add_class_gauges(lambda: self._waiting)
        self._quota_sharing = QuotaSharing(self._picker.admitting.quotas, Spending(redis, keys))
        self._platform = PlatformLink(config, redis, keys, self._follow, self._state)
        self._orders = Orders()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Serves until told to stop. Raises OSError where a port is taken, BadCertificate, ConfigError."""
        async with contextlib.AsyncExitStack() as exits:
            await self._discovering.open(exits)
            exits.callback(self._picker.close)
            exits.callback(self._serve_metrics())
            if self._config.health:
                await self._start(exits, self._port(self._config.health, None), "health")
            streams, queues = lambda: self._ext_proc.streams, self._picker.admitting.queues
            asks = Asks(self._picker, self._degraded, streams, queues)
            await self._insight.open(exits, asks)
            await self._sizing.open(exits)
            main = self._main_port()
            await self._start(exits, main, "listen")
            log.info("serving", listen=self._config.listen, metrics=self._config.metrics, pool=self._config.pool)
            for name in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(name, self._stopping.set)
            # What was loaded stays; the collector need not look at it again.
            gc.collect()
            gc.freeze()
            await self._serve_until_told(main)

    async def _start(self, exits: contextlib.AsyncExitStack, port: Port, setting: str) -> None:
        await self._health.add_to(port)
        exits.push_async_callback(port.stop, 0)
        try:
            await port.start()
        except OSError:
            raise OSError(_cannot_listen(setting, getattr(self._config, setting))) from None

    def _serve_metrics(self) -> Callable[[], None]:
        try:
            return self._metrics.serve(*host_and_port(self._config.metrics))
        except OSError:
            raise OSError(_cannot_listen("metrics", self._config.metrics)) from None

    async def _serve_until_told(self, main: Port) -> None:
        async with asyncio.TaskGroup() as tasks:
            background = [
                tasks.create_task(self._feed.run(), name="feed"),
                tasks.create_task(self._discovering.run(), name="discovery"),
                tasks.create_task(self._platform.run(), name="platform"),
                tasks.create_task(self._sharing.run(), name="sharing"),
                tasks.create_task(self._insight.run(), name="insight"),
                tasks.create_task(self._quota_sharing.run(), name="quota-sharing"),
                tasks.create_task(self._sweep(), name="sweep"),
                tasks.create_task(self._become_ready(), name="become-ready"),
                tasks.create_task(self._truth.run(), name="truth-check"),
                tasks.create_task(self._sizing.run(), name="sizing"),
                tasks.create_task(Reload(self._source, self._config, self._reconfigure).run(), name="reload"),
                tasks.create_task(self._offered.run(), name="offered-tokenizers"),
            ]
            await self._stopping.wait()
            await self._drain(main)
            for task in background:
                task.cancel()

    def _reconfigure(self, config: Config) -> None:
        """Goes by another configuration, and by the platform's orders as before."""
        self._config = config
        ordered = followed(config, self._orders)
        self._picker.configure(ordered)
        self._insight.configure(ordered)

    def _follow(self, orders: Orders) -> None:
        self._orders = orders
        self._insight.cordon(frozenset(orders.cordons or ()))
        self._reconfigure(self._config)

    def _state(self) -> State:
        picker = PickerState(
            process=self._insight.process,
            at=round(time.time(), 3),
            pickers=self._pickers(),
            degraded=tuple(name for name, is_so in self._degraded().items() if is_so),
            orders=self._platform.followed(),
        )
        return State(picker=picker, workers=workers(self._view, time.monotonic()), models=self._sizing.models())

    def _port(self, address: str, tls: Tls | None) -> Port:
        return port(self._config, address, tls, self._budget, self._metrics.misbehaved)

    def _main_port(self) -> Port:
        main = self._port(self._config.listen, self._config.tls)
        main.add_ext_proc(self._ext_proc)
        main.add_generic_rpc_handlers((EndpointDiscovery(self._endpoints).handler(), AccessLog(self._count).handler()))
        if self._config.reflection:
            add_reflection(main, (service.SERVICE, eds.SERVICE, access_log.SERVICE))
        return main

    async def _become_ready(self) -> None:
        """Ready once the fleet is read; and without it after a while, since Envoy's own balancing beats nobody's."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READY_WITHOUT_FLEET_AFTER_S):
                await self._discovering.ready()
                await self._feed.synced.wait()
                await self._offered.look()
        await self._health.set_ready(True)
        served = self._view.model_names()
        if served and (unserved := sorted(set(self._config.tokenizers) - served)):
            log.warning("tokenizer_of_unserved_model", models=unserved, served=sorted(served))

    async def _sweep(self) -> None:
        while True:
            self._view.sweep(time.monotonic())
            # Scrapes are answered by another thread, which must not read what this one changes.
            self._gauges = self._readings()
            self._waiting = self._picker.admitting.by_class()
            self._insight.look(self._degraded(), time.monotonic())
            due = time.monotonic() + _SWEEP_EVERY_S
            await asyncio.sleep(_SWEEP_EVERY_S)
            self._metrics.loop_lag_seconds.observe(max(0.0, time.monotonic() - due))

    async def _drain(self, main: Port) -> None:
        log.info("draining", streams=self._ext_proc.streams, at_most_s=self._config.drain_s)
        await self._health.set_ready(False)
        await asyncio.sleep(self._config.drain_wait_s)
        self._picker.admitting.drain()
        # GOAWAY: new streams go elsewhere, those in flight may end.
        async with asyncio.TaskGroup() as tasks:
            stopped = tasks.create_task(main.stop(self._config.drain_s), name="drain")
            quiet_since = time.monotonic()
            # A stream that was on its way when we said so shows up a moment later.
            while not stopped.done() and time.monotonic() - quiet_since < _QUIET_S:
                await asyncio.sleep(_SWEEP_EVERY_S)
                if self._ext_proc.streams:
                    quiet_since = time.monotonic()
            # Envoy's discovery and access-log streams and health watchers never end by themselves.
            await main.stop(0)

    def _pickers(self) -> int:
        return 1 + self._sharing.statistics().pickers

    def _is_blind(self) -> bool:
        return not (self._feed.synced.is_set() or self._discovering.synced.is_set())

    def _degraded(self) -> dict[str, bool]:
        """What does not work as it should, by name: gauges, the debug service and the page tell."""
        view, feed = self._view, self._feed.statistics()
        usable = len(view.usable_endpoints())
        return {
            "redis": not feed.connected,
            "fleet_unread": self._is_blind(),
            "no_worker_ready": not usable,
            "workers_stale": bool((view.ready & ~view.fresh()).any()),
            "workers_cordoned": bool(view.cordoned.any()),
            "kubernetes": self._discovering.is_lost,
            "platform": bool(self._platform.error),
            "workers_outside_pool": bool(view.outside.any()),
            "breakers_open": bool(view.breakers.open),
            "prefixes_dirty": bool(feed.dirty),
            "events_lag": feed.lag_events > _MUCH_LAG_EVENTS,
            "prediction": bool(self._truth.wrong),
        }

    def _endpoints(self) -> tuple[str, ...] | None:
        return None if self._is_blind() else self._view.usable_endpoints()

    def _count(self, outcome: Outcome) -> None:
        self._metrics.response(outcome.status)
        self._observer.logged(outcome)
        breakers = self._view.breakers
        if outcome.is_broken:
            self._metrics.broken.inc()
        if outcome.is_broken or breakers.is_suspicious:
            for slot in self._view.slots_at(outcome.served):
                breakers.ended(slot, outcome.is_broken, time.monotonic())
        if outcome.attempts > 1:
            self._metrics.retried.inc()
        elif outcome.picked and outcome.served and outcome.served != outcome.picked[0]:
            self._metrics.not_honoured.inc()

    def _readings(self) -> Readings:
        view, feed, sharing = self._view, self._feed.statistics(), self._sharing.statistics()
        others = int(view.inflight.others.requests.sum())
        return {
            "decisions_dropped_total": ("Decisions that could not be written.", self._insight.dropped),
            "workers": ("Workers known.", len(list(view.slots()))),
            "workers_ready": ("Workers that may be picked.", len(view.usable_endpoints())),
            "workers_silent": ("Workers whose agent is not heard.", int((view.known & ~view.fresh()).sum())),
            "platform_refused_total": ("Orders of the platform that were refused.", self._platform.refused),
            "workers_unattended": ("Workers of the InferencePool without an agent.", self._discovering.unattended),
            "inflight_requests": ("Requests placed and not ended.", int(view.inflight.requests.sum())),
            "inflight_prefill_seconds": ("Predicted prefill not done yet.", float(view.inflight.prefill_s.sum())),
            "index_blocks": ("Distinct index blocks that workers hold.", len(view.index)),
            "streams": ("Open ext_proc streams.", self._ext_proc.streams),
            "streams_opened_total": ("ext_proc streams since the start, one for each request.", self._ext_proc.opened),
            "held_body_bytes": ("Bytes of request bodies held.", self._budget.taken),
            "redis_connected": ("1 while Redis answers.", float(feed.connected)),
            "dirty_slots": ("Workers whose prefixes do not count at the moment.", feed.dirty),
            "view_lag_events": ("Events that agents have counted and the mirror lacks.", feed.lag_events),
            "view_reloads_total": ("Snapshots read because events were missing.", feed.reloads),
            "foreign_records_total": ("Undecodable data met in Redis.", feed.foreign + sharing.foreign),
            "peers": ("Other pickers whose requests in flight are seen.", sharing.pickers),
            "peers_inflight_requests": ("Of them, requests placed and not ended.", others),
            **self._picker.admitting.readings(),
            "sharing_refused_total": ("Writes for other pickers that Redis did not take.", sharing.refused),
            "sharing_lost_total": ("Placed prompts of which other pickers were not told in time.", sharing.lost),
            **memo_readings(self._reader),
        }


def prompt_reader(tokenizers: Mapping[str, ModelTokenizer], limits: Limits) -> PromptReader:
    """The reader within its limits."""
    return PromptReader(
        tokenizers,
        states_bytes=limits.prompt_states_bytes,
        tokens_bytes=limits.prompt_tokens_bytes,
        most_chars=limits.max_prompt_chars,
        most_segment_chars=limits.max_segment_chars,
        most_bytes=limits.max_prompt_bytes,
    )


def memo_readings(reader: PromptReader) -> Readings:
    """How well what is remembered of prompts serves: chains of their beginnings, and tokens of their segments."""
    chains, tokens = reader.statistics()
    return {
        "memo_bytes": ("Memory of prompts that were read.", chains.bytes + tokens.bytes),
        "memo_evictions_total": ("Segments forgotten for want of room.", chains.evictions + tokens.evictions),
        "memo_chain_hits_total": ("Segments whose chain was known.", chains.hits),
        "memo_chain_misses_total": ("Prompts whose chain was not known to the end.", chains.misses),
        "memo_tokens_hits_total": ("Of other segments, those whose tokens were known.", tokens.hits),
        "memo_tokens_misses_total": ("Segments that were tokenised.", tokens.misses),
    }


def longest_pick_s(config: Config) -> float:
    """How long a pick can take: its prompt is read, and then it waits for a worker."""
    waits = [max(each.max_wait_s, each.wait_for_workers_s) for each in config.admission.classes]
    reading_s = 2 * config.limits.tokenize_budget_s
    return reading_s + (max(waits) if config.admission.enabled else 0.0) + _LATE_S


def _cannot_listen(setting: str, address: str) -> str:
    return f"{setting}: cannot listen on {address}: the port is taken, or the address is not this machine's"


def _reveal_header(config: Config) -> str:
    if config.conformance:
        return "x-conformance-test-served-endpoint"
    return "x-picker-endpoint" if config.reveal_endpoint else ""
