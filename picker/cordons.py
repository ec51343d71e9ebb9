"""Cordons, kept up to date: what operators have asked of any picker of the pool, or of this one without Redis."""

from __future__ import annotations

import asyncio

import structlog

from picker.fleet.view import View
from picker.redisview.connection import FAILURES
from picker.redisview.cordons import CordonRecords

log = structlog.get_logger()

_READ_EVERY_S = 1.0


class Cordons:
    """Applies the pool's cordons to a view. What Redis did not take is tried again with each reading."""

    def __init__(self, records: CordonRecords, view: View):
        self._records = records
        self._view = view
        self._unsaved: dict[str, str | None] = {}
        self._asked = frozenset[str]()
        self._ordered = frozenset[str]()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(_READ_EVERY_S)

    async def read(self) -> None:
        """Once. Without Redis all stays as it is."""
        try:
            await self._save()
            names = frozenset(await self._records.read())
        except FAILURES:
            return
        if names != self._asked:
            log.info("cordons_changed", cordoned=sorted(names))
            self._ask(names)

    def order(self, workers: frozenset[str]) -> None:
        """These are cordoned besides, by a platform; no operator can uncordon them."""
        self._ordered = workers
        self._view.cordon(self._asked | self._ordered)

    async def cordon(self, worker: str, note: str) -> bool:
        """At once here; whether the other pickers will know."""
        log.info("worker_cordoned", worker=worker, note=note)
        self._ask(self._asked | {worker})
        return await self._put(worker, note)

    async def uncordon(self, worker: str) -> bool:
        """At once here; whether the other pickers will know."""
        log.info("worker_uncordoned", worker=worker)
        self._ask(self._asked - {worker})
        return await self._put(worker, None)

    def _ask(self, workers: frozenset[str]) -> None:
        self._asked = workers
        self._view.cordon(self._asked | self._ordered)

    async def _put(self, worker: str, note: str | None) -> bool:
        self._unsaved[worker] = note
        try:
            await self._save()
        except FAILURES as error:
            log.warning("cordon_not_shared", consequence="tried again each second", error=type(error).__name__)
        return worker not in self._unsaved

    async def _save(self) -> None:
        for worker, note in list(self._unsaved.items()):
            await (self._records.remove(worker) if note is None else self._records.put(worker, note))
            self._unsaved.pop(worker, None)
