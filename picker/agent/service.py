"""`picker agent`: watches engines and publishes what they serve, hold and do (`agent.worker`).

Each worker has its tasks and state to itself; one that fails is begun anew after a pause, and the others do not notice.
Which workers there are may change at any time (`agent.discovery`): those that are new are watched from then on, those
that are gone are published as draining and left.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import structlog
import zmq.asyncio

from picker.agent.config import AgentConfig, WorkerConfig, address, tokenizer_cache
from picker.agent.discovery import file
from picker.agent.lifecycle import Lifecycle, LifecycleSettings
from picker.agent.publisher import Publisher
from picker.agent.telemetry import Pulse, serve
from picker.agent.tokenizers import TokenizerOffers
from picker.agent.worker import AgentSettings, WorkerAgent, WorkerStatistics
from picker.config_files import ConfigError
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.tokenizers import TokenizerStore

_log = structlog.get_logger()
_PULSE_S = 1.0


@dataclass(slots=True)
class _Watched:
    """A worker that is watched. `agent` is None before it begins, and another one after a fault."""

    config: WorkerConfig
    task: asyncio.Task[None]
    agent: WorkerAgent | None = None


class Agent:
    """All workers of one configuration."""

    def __init__(self, config: AgentConfig, settings: AgentSettings | None = None) -> None:
        """Raises BadRedisUrl."""
        self._config = config
        self._settings = settings or AgentSettings()
        self._keys = Keys(config.pool)
        self._redis = connect(config.redis, self._keys)
        cache = tokenizer_cache(config.tokenizer_cache, os.environ)
        self._offers = TokenizerOffers(TokenizerStore(self._redis, self._keys), cache)
        self._pulse = Pulse()
        self._watched: dict[str, _Watched] = {}
        self._found: dict[str, list[WorkerConfig]] = {}
        self._tasks: asyncio.TaskGroup
        self._client: httpx.AsyncClient
        self._context: zmq.asyncio.Context

    def statistics(self) -> dict[str, WorkerStatistics]:
        """By name of the worker."""
        return {name: each.agent.statistics() for name, each in [*self._watched.items()] if each.agent}

    async def run(self) -> None:
        """Until cancelled, or the process gets SIGTERM.

        Then a server that was given by name, alone, is published as draining: this agent is a sidecar, which ends with
        it. Others go on without us, and nothing is said: the next agent takes over, or their lease ends.

        Raises ConfigError for what shows only now.
        """
        stop = self._serve()
        self._context = zmq.asyncio.Context()
        loop = asyncio.get_running_loop()
        try:
            # Engines are neighbours: a proxy from the environment is never meant for them.
            async with httpx.AsyncClient(trust_env=False) as self._client, asyncio.TaskGroup() as self._tasks:
                others = [self._tasks.create_task(self._keep(name, found)) for name, found in self._sources()]
                others.append(self._tasks.create_task(self._beat()))
                loop.add_signal_handler(signal.SIGTERM, self._end, others)
                self.take("configuration", self._config.workers)
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        finally:
            loop.remove_signal_handler(signal.SIGTERM)
            self._context.destroy(linger=0)
            await self._redis.aclose()
            stop()

    def _serve(self) -> Callable[[], None]:
        if not self._config.listen:
            return lambda: None
        try:
            return serve(*address(self._config.listen), self.statistics, self._pulse)
        except OSError as error:
            # Several agents on one machine have the same default; workers matter more than our own metrics.
            _log.error("agent_metrics_off", listen=self._config.listen, reason=str(error), advice="set listen")
            return lambda: None

    def _end(self, others: Iterable[asyncio.Task[None]]) -> None:
        is_sidecar = len({worker.url for worker in self._config.workers}) == 1
        for each in self._watched.values():
            if each.agent and not is_sidecar:
                each.agent.relieve()
        for task in (*others, *(each.task for each in self._watched.values())):
            task.cancel()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            await asyncio.sleep(_PULSE_S)

    # -- which workers there are ---------------------------------------------------------------------------------

    def _sources(self) -> Iterable[tuple[str, AsyncIterator[list[WorkerConfig]]]]:
        if self._config.workers_file:
            yield "file", file.watch(Path(self._config.workers_file))
        if self._config.kubernetes is not None:
            # An extra, which takes long to import.
            from picker.agent.discovery.kubernetes import watch_pods

            yield "kubernetes", watch_pods(self._config.kubernetes)

    async def _keep(self, source: str, found: AsyncIterator[list[WorkerConfig]]) -> None:
        async for workers in found:
            self.take(source, workers)

    def take(self, source: str, workers: list[WorkerConfig]) -> None:
        """These are now all the workers of a source. Of workers of one name, the first one's source counts."""
        self._found[source] = workers
        wanted = {config.name: config for found in reversed(self._found.values()) for config in reversed(found)}
        names = sorted(wanted)
        if len(names) > self._config.max_workers:
            _log.error("too_many_workers", limit=self._config.max_workers, consequence="the rest is not watched")
        for name in set(self._watched) - set(names[: self._config.max_workers]):
            self._watched.pop(name).task.cancel()
        for name in names[: self._config.max_workers]:
            self._watch(wanted[name])

    def _watch(self, config: WorkerConfig) -> None:
        known = self._watched.get(config.name)
        if known is None:
            self._begin(config, None)
        elif msgspec.structs.replace(known.config, draining=config.draining) != config:
            known.task.cancel()
            self._begin(config, known.task)
        elif known.config.draining != config.draining:
            known.config = config
            if known.agent is not None:
                known.agent.drain(config.draining)

    def _begin(self, config: WorkerConfig, earlier: asyncio.Task[None] | None) -> None:
        task = self._tasks.create_task(self._supervise(config.name, earlier))
        self._watched[config.name] = _Watched(config, task)

    # -- watching one --------------------------------------------------------------------------------------------

    async def _supervise(self, name: str, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            # Its last word must not come after our first one.
            await asyncio.wait([earlier])
        watched = self._watched[name]
        while True:
            try:
                watched.agent = self._worker(watched.config)
                await watched.agent.run(self._config.probe_interval_s)
            # A fault of ours in the code for one worker must not take the others down.
            except Exception as error:
                _log.error("worker_agent_failed", worker=name, error=_reason(error))
            await asyncio.sleep(self._settings.restart_pause_s)

    def _worker(self, config: WorkerConfig) -> WorkerAgent:
        lifecycle = Lifecycle(LifecycleSettings(self._config.stall_after_s, self._settings.tolerated_timeouts))
        publisher = Publisher(self._redis, self._keys, self._settings.publisher)
        offers = self._offers if self._config.offer_tokenizers else None
        return WorkerAgent(config, lifecycle, self._client, self._context, publisher, self._settings, offers)


def _reason(error: BaseException) -> str:
    """Types and messages of an error and of those it groups."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_reason(each) for each in error.exceptions)
    return f"{type(error).__name__}: {error}"
