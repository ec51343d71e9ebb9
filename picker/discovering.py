"""The InferencePool of `picker serve`: what Kubernetes says is in it goes into the view, with what agents say of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from picker.config import Config
from picker.config_checks import BadSetting
from picker.fleet.endpoints import canonical, is_reachable, networks
from picker.fleet.unattended import PoolEndpoint, Unattended
from picker.fleet.view import View
from picker.kubernetes.objects import Pod

if TYPE_CHECKING:
    from picker.kubernetes.pool import FollowedPool

log = structlog.get_logger()

_LOOK_EVERY_S = 0.2
_MOST_NAMED = 20


class Discovering:
    """Keeps a view in step with the pool. Without the setting `kubernetes` there is nothing to do."""

    def __init__(self, config: Config, view: View):
        self._config = config
        self._networks = networks(config.worker_networks)
        self._view = view
        self._unattended = Unattended(view)
        self._told: list[str] = []
        self._pool: FollowedPool | None = None
        self.synced = asyncio.Event()
        """Set once the pool's pods have been read."""

    def __repr__(self) -> str:
        return f"<Discovering {self._pool!r} {self._unattended!r}>"

    @property
    def is_lost(self) -> bool:
        """Whether Kubernetes does not show us the pool at present: then it stays as it was."""
        return self._pool is not None and self._pool.is_lost

    @property
    def unattended(self) -> int:
        """Workers for which no agent speaks."""
        return len(self._told)

    async def open(self, exits: contextlib.AsyncExitStack) -> None:
        """Finds the way into the cluster. Raises ConfigError, and BadSetting where the client is not installed."""
        settings = self._config.kubernetes
        if settings is None:
            return
        try:
            from picker.kubernetes.api import api
            from picker.kubernetes.pool import FollowedPool
        except ModuleNotFoundError as error:
            advice = "it comes with: pip install 'envoy-picker[kubernetes]'"
            raise BadSetting(f"kubernetes: {error.name} is missing; {advice}") from None
        way_in = await exits.enter_async_context(api(settings.kubeconfig))
        self._pool = FollowedPool(way_in, settings, settings.inference_pool or self._config.pool, self._take)

    async def ready(self) -> None:
        """Returns once there is nothing to wait for: the pool has been read, or none is followed."""
        if self._pool:
            await self.synced.wait()

    async def run(self) -> None:
        """Until cancelled."""
        if self._pool:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pool.run(), name="inference-pool")
                tasks.create_task(self._look(), name="unattended")

    async def _look(self) -> None:
        await self.synced.wait()
        while True:
            self._unattended.look(time.monotonic())
            self._tell()
            await asyncio.sleep(_LOOK_EVERY_S)

    def _take(self, pods: Sequence[Pod], ports: tuple[int, ...]) -> None:
        most = self._config.kubernetes.max_workers if self._config.kubernetes else 0
        found = self._endpoints(pods, ports)
        self._unattended.take(islice(found, most), time.monotonic())
        if next(found, None):
            log.error("too_many_workers", limit=most, consequence="the rest of the pool is not picked")
        self.synced.set()

    def _endpoints(self, pods: Sequence[Pod], ports: tuple[int, ...]) -> Iterator[PoolEndpoint]:
        for pod in sorted(pods, key=lambda pod: pod.metadata.name):
            for port in ports if pod.host and pod.is_ready else ():
                address = canonical(f"{pod.host}:{port}")
                if address and is_reachable(address, self._networks):
                    # As an agent that finds pods by itself calls them, so that cordons hold with and without one.
                    name = pod.metadata.name if len(ports) == 1 else f"{pod.metadata.name}:{port}"
                    incarnation = f"{pod.metadata.uid} {pod.restarts}"
                    yield PoolEndpoint(name, address, incarnation, pod.metadata.labels)

    def _tell(self) -> None:
        names = self._unattended.names()
        if names != self._told:
            self._told = names
            log.info("workers_without_agent", count=len(names), workers=names[:_MOST_NAMED])
