"""Objects of one kind, kept up to date.

A list, then a watch from there on, then after `relist_s` a list again: whatever a watch misses (Kubernetes drops events
of those who fall behind, and a network may cut a stream without a word) is put right by the next list.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from picker.kubernetes.api import Api, ApiError
from picker.kubernetes.objects import Object, Objects

T = TypeVar("T", bound=Object)
_log = structlog.get_logger()
RETRY_S = 2.0
_TOO_OLD = 410


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """What to follow: a path of the API, and the labels or fields that select."""

    path: str
    kind: type[T]
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """For a list or a watch."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


class Followed(Generic[T]):
    """What a resource selects. While the API server cannot be reached all stays as it is."""

    def __init__(self, api: Api, resource: Resource[T], relist_s: int, retry_s: float = RETRY_S):
        self.is_lost = False
        """Whether the API server does not answer at present, or does not let us see this."""
        self._api = api
        self._resource = resource
        self._relist_s = relist_s
        self._retry_s = retry_s
        self._objects: Objects[T] = Objects()

    def __repr__(self) -> str:
        return f"<Followed {self._resource.path} {self._objects!r}>"

    async def changes(self) -> AsyncGenerator[list[T], None]:
        """All of them, and again whenever that has changed. Never ends."""
        while True:
            try:
                async with aclosing(self._once()) as found:
                    async for objects in found:
                        self._found()
                        yield objects
            except ApiError as error:
                # What we know is too old to go on from; no fault of anybody's.
                if error.status != _TOO_OLD:
                    self._lose(error)
                await asyncio.sleep(self._retry_s)

    async def _once(self) -> AsyncGenerator[list[T], None]:
        """From a list to the end of the watch that follows it."""
        resource = self._resource
        listed = await self._api.list(resource.path, resource.kind, resource.query())
        self._objects.replace(listed.items)
        yield self._objects.all()
        version = listed.metadata.resource_version
        watch = self._api.watch(resource.path, resource.kind, resource.query(), version, self._relist_s)
        async with aclosing(watch) as events:
            async for kind, changed in events:
                self._objects.apply(kind, changed)
                yield self._objects.all()

    def _found(self) -> None:
        if self.is_lost:
            self.is_lost = False
            _log.info("kubernetes_back", path=self._resource.path)

    def _lose(self, error: ApiError) -> None:
        if not self.is_lost:
            self.is_lost = True
            advice = "may our service account list and watch it?" if error.status in (401, 403) else ""
            _log.warning(
                "kubernetes_lost",
                path=self._resource.path,
                reason=str(error),
                consequence="the workers stay as they are",
                advice=advice,
            )
