"""An InferencePool and the pods that it selects, followed together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from picker.kubernetes.api import Api, own_namespace
from picker.kubernetes.follow import RETRY_S, Followed, Resource
from picker.kubernetes.objects import InferencePool, Pod
from picker.kubernetes.settings import VERSIONS, KubernetesPool

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Selection:
    """What an InferencePool says: which pods, and at which ports of each there is an endpoint."""

    labels: str
    ports: tuple[int, ...]


class FollowedPool:
    """`tell` is handed all pods of the pool and the ports of each, and again whenever that has changed."""

    def __init__(
        self,
        api: Api,
        settings: KubernetesPool,
        name: str,
        tell: Callable[[Sequence[Pod], tuple[int, ...]], None],
        retry_s: float = RETRY_S,
    ):
        self._api = api
        self._tell = tell
        self._relist_s, self._retry_s = settings.relist_s, retry_s
        self._namespace = settings.namespace or own_namespace()
        version = f"{settings.group}/{VERSIONS[settings.group]}"
        path = f"/apis/{version}/namespaces/{self._namespace}/inferencepools"
        # By its name, so that the right to see this one is enough.
        pool = Resource(path, InferencePool, fields=f"metadata.name={name}")
        self._pools = Followed(api, pool, self._relist_s, retry_s)
        self._pods: Followed[Pod] | None = None
        self._selection: Selection | None = None
        self._is_missing = False

    def __repr__(self) -> str:
        return f"<FollowedPool {self._selection}>"

    @property
    def is_lost(self) -> bool:
        """Whether the pool or its pods cannot be seen at present; then all stays as it was."""
        return self._is_missing or self._pools.is_lost or (self._pods is not None and self._pods.is_lost)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as tasks, aclosing(self._pools.changes()) as changes:
            following: asyncio.Task[None] | None = None
            async for pools in changes:
                selection = _selection(pools)
                self._note_missing(selection is None)
                if selection is None or selection == self._selection:
                    continue
                if following:
                    following.cancel()
                self._selection = selection
                following = tasks.create_task(self._follow_pods(selection), name="pods")

    async def _follow_pods(self, selection: Selection) -> None:
        resource = Resource(f"/api/v1/namespaces/{self._namespace}/pods", Pod, labels=selection.labels)
        self._pods = Followed(self._api, resource, self._relist_s, self._retry_s)
        async with aclosing(self._pods.changes()) as changes:
            async for pods in changes:
                self._tell(pods, selection.ports)

    def _note_missing(self, is_missing: bool) -> None:
        if is_missing and not self._is_missing:
            advice = "is there one of this name, with a selector and a port?"
            _log.warning("inference_pool_missing", consequence="the workers stay as they are", advice=advice)
        self._is_missing = is_missing


def _selection(pools: Sequence[InferencePool]) -> Selection | None:
    """None where there is no pool, or one without a selector, which would be all pods there are."""
    usable = [Selection(pool.selector, pool.ports) for pool in pools if pool.selector and pool.ports]
    return usable[0] if usable else None
