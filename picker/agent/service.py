"""`picker agent`: watches engines and publishes what they serve, hold and do (`agent.worker`).

Each worker has its tasks and state to itself; one that fails is begun anew after a pause, and the others do not notice.
"""

from __future__ import annotations

import asyncio
import signal

import httpx
import structlog
import zmq.asyncio

from picker.agent.config import AgentConfig, WorkerConfig
from picker.agent.lifecycle import Lifecycle, LifecycleSettings
from picker.agent.publisher import Publisher
from picker.agent.worker import AgentSettings, WorkerAgent, WorkerStatistics
from picker.redisview.connection import connect
from picker.redisview.keys import Keys

_log = structlog.get_logger()


class Agent:
    """All workers of one configuration."""

    def __init__(self, config: AgentConfig, settings: AgentSettings | None = None) -> None:
        """Raises BadRedisUrl."""
        self._config = config
        self._settings = settings or AgentSettings()
        self._keys = Keys(config.pool)
        self._redis = connect(config.redis, self._keys)
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
