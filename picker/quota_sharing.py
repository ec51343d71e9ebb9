"""Tells the other pickers what this one has let in under its quotas, and hears the same of them."""

from __future__ import annotations

import asyncio

import structlog

from picker.admission.quotas import Quotas
from picker.redisview.connection import FAILURES
from picker.redisview.spending import Spending

log = structlog.get_logger()

EVERY_S = 0.25


class QuotaSharing:
    """While Redis is away each picker goes by what it knows: nobody is refused for that."""

    def __init__(self, quotas: Quotas, spending: Spending, every_s: float = EVERY_S):
        self._quotas = quotas
        self._spending = spending
        self._every_s = every_s
        self._is_heard = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            # They may come and go while we run.
            if self._quotas:
                await self._tick()

    async def _tick(self) -> None:
        told = self._quotas.spent()
        try:
            totals = await self._spending.add(told)
        except FAILURES as error:
            self._quotas.unspent(told)
            self._note(False, type(error).__name__)
            return
        self._quotas.heard(totals, told)
        self._note(True, "")

    def _note(self, is_heard: bool, reason: str) -> None:
        if is_heard == self._is_heard:
            return
        self._is_heard = is_heard
        if is_heard:
            log.info("quotas_shared")
        else:
            log.warning("quotas_not_shared", reason=reason, consequence="each picker lets in what the quotas allow")
