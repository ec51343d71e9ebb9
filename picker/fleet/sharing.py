"""Tells the other pickers what this one has in flight and has placed, and hears the same of them.

One exchange every few hundredths of a second, in one round trip. Without Redis a picker goes by its own books: what
others said counts for as long as their lease, and no longer.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from redis.asyncio import Redis

from picker.fleet.peers import Peers
from picker.fleet.routed import Placement
from picker.fleet.view import View
from picker.fleet.watch import Watch
from picker.redisview.advice import advice, takes_no_writes
from picker.redisview.connection import FAILURES, Backoff, reason
from picker.redisview.exchange import Exchange, ExchangeSettings, Incoming, Outgoing, RoutedEntry
from picker.redisview.keys import Keys
from picker.redisview.records import StreamId
from picker.redisview.share_records import MAX_ROUTED_BLOCKS, Placed, Routed, Share, rows_of

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SharingSettings:
    """Times in seconds. `every_s`: another picker sees a change after twice this at most, and the round trips.

    `alone_s`: the same while there is no other picker; it is noticed after so long.
    `renew_s`: a share that does not change is written so often. `awaited_s`: prompts of others that their workers will
    announce themselves are of no use after so long. `entries`: of placed prefixes, written at once. `slice_blocks`: the
    loop is let go after so many.
    """

    every_s: float = 0.04
    alone_s: float = 0.25
    renew_s: float = 0.5
    awaited_s: float = 5.0
    entries: int = 4
    slice_blocks: int = 2000
    first_retry_s: float = 0.05
    longest_retry_s: float = 2.0
    exchange: ExchangeSettings = field(default_factory=ExchangeSettings)


@dataclass(frozen=True, slots=True)
class SharingStatistics:
    """Sharing at one moment. `pickers`: the others. `refused`: writes that Redis did not take.

    `lost`: placed prompts that could not be told in time.
    """

    pickers: int
    is_seated: bool
    refused: int
    foreign: int
    lost: int


class Sharing:
    """One picker among those of a pool. It begins once `synced`: what others placed means nothing without workers."""

    def __init__(
        self,
        client: Redis,
        keys: Keys,
        view: View,
        synced: asyncio.Event,
        watch: Watch,
        settings: SharingSettings = SharingSettings(),
    ):
        rng = random.Random()
        self._own = secrets.randbits(63)
        self._view = view
        self._synced = synced
        self._watch = watch
        self._settings = settings
        self._exchange = Exchange(client, keys, settings.exchange)
        self._backoff = Backoff(rng, settings.first_retry_s, settings.longest_retry_s)
        self._peers = Peers(self._own, settings.exchange.seats, rng.choice)
        self._beat = 0
        self._told: int | None = None
        self._told_at = 0.0
        self._heard_at = 0.0
        self._mapped = -1
        self._cursor: StreamId = (0, 0)
        self._newest: StreamId = (0, 0)
        self._is_cursor_sure = False
        self._refused = 0
        self._is_refused = False
        self._foreign = 0

    def __repr__(self) -> str:
        return f"<Sharing {self.statistics()}>"

    def statistics(self) -> SharingStatistics:
        """Named numbers for metrics and tests."""
        return SharingStatistics(
            pickers=len(self._peers),
            is_seated=self._peers.is_seated,
            refused=self._refused,
            foreign=self._foreign + self._peers.foreign,
            lost=self._view.routed.lost,
        )

    async def run(self) -> None:
        """Until cancelled; nothing that Redis does ends it."""
        await self._synced.wait()
        while True:
            pause_s = 0.0
            try:
                if not await self._tick():
                    pause_s = self._settings.every_s if len(self._peers) else self._settings.alone_s
            except FAILURES:
                # It is the feed that says in the log that Redis is away.
                self._is_cursor_sure = False
                pause_s = self._backoff.next()
            except Exception as fault:
                _log.error("sharing_failed", exc_info=fault, consequence="picks go by this picker's own books")
                pause_s = self._settings.longest_retry_s
            else:
                self._backoff.reset()
            self._forget_old(time.monotonic())
            await asyncio.sleep(pause_s)

    async def _tick(self) -> bool:
        """One exchange; whether more waits to be read or told."""
        if not self._is_cursor_sure:
            await self._find_cursor()
        now, version = time.monotonic(), self._view.inflight.version
        outgoing = self._outgoing(now, version)
        incoming = await self._exchange.exchange(outgoing, self._peers.readable(now), self._cursor)
        now = time.monotonic()
        self._hear(incoming, now)
        if outgoing.share is not None:
            self._peers.note_written(incoming.is_seated)
            # A seat that was lost is replaced at once; what Redis refuses is tried again after a while.
            is_settled = incoming.is_seated or incoming.refusal is not None
            self._told, self._told_at = version if is_settled else None, now
        if outgoing.share is not None or outgoing.routed:
            self._note_refusal(incoming)
        await self._apply(incoming.routed, now)
        is_behind = len(outgoing.routed) == self._settings.entries
        return is_behind or len(incoming.routed) >= self._settings.exchange.page_entries

    def _forget_old(self, now: float) -> None:
        if len(self._peers) and now - self._heard_at > self._settings.exchange.lease_s:
            self._peers.forget()
            self._view.inflight.others.clear()

    # What we tell.

    def _outgoing(self, now: float, version: int) -> Outgoing:
        settings, peers = self._settings, self._peers
        routed = self._routed()
        is_due = version != self._told or now - self._told_at >= settings.renew_s
        if not self._heard_at or not is_due:
            return Outgoing(routed=routed)
        peers.look_for_seat()
        return Outgoing(peers.seat, self._share(now) if peers.seat is not None else None, not peers.is_seated, routed)

    def _share(self, now: float) -> bytes:
        sums = self._view.inflight.share(self._view.epochs, now)
        self._beat += 1
        rows = rows_of(
            epoch=sums.epochs,
            requests=sums.requests,
            context_tokens=sums.context_tokens,
            prefill_s=sums.prefill_s,
            window_s=sums.window_s,
            token_age_s=sums.token_age_s,
            owing_age_s=sums.owing_age_s,
        )
        return Share(self._own, self._beat, rows).pack()

    def _routed(self) -> list[bytes]:
        entries: list[bytes] = []
        while len(entries) < self._settings.entries and (taken := self._view.routed.take(MAX_ROUTED_BLOCKS)):
            if placed := [Placed(*each) for each in taken if self._is_news(each)]:
                entries.append(Routed(self._own, placed).pack())
        return entries

    def _is_news(self, placement: Placement) -> bool:
        """What a worker will announce itself is of use only to pickers that are here now."""
        return not placement.is_awaited or len(self._peers) > 0

    def _note_refusal(self, incoming: Incoming) -> None:
        refusal = incoming.refusal
        self._refused += refusal is not None
        self._watch.is_held = refusal is not None and takes_no_writes(refusal)
        if refusal is not None and not self._is_refused:
            consequence = "other pickers do not see what this one has in flight"
            _log.warning("redis_refuses", reason=reason(refusal), consequence=consequence, advice=advice(refusal))
        self._is_refused = refusal is not None

    # What we hear.

    def _hear(self, incoming: Incoming, now: float) -> None:
        self._heard_at = now
        self._foreign += incoming.has_foreign_stream
        has_changed = self._peers.hear(incoming.shares, now)
        if has_changed or self._mapped != self._view.version:
            self._mapped = self._view.version
            self._view.inflight.others.replace(self._peers.sums(), self._view.slots_of, now)

    async def _find_cursor(self) -> None:
        """At the start, from the oldest prefix that is kept; later, not beyond the end of a stream that is another."""
        self._newest = await self._exchange.last_routed_id()
        self._cursor = min(self._cursor, self._newest)
        self._is_cursor_sure = True

    async def _apply(self, entries: Sequence[RoutedEntry], now: float) -> None:
        blocks = 0
        for entry in entries:
            self._cursor = entry.id
            self._newest = max(self._newest, entry.id)
            if entry.routed is None:
                self._foreign += 1
            elif entry.routed.picker != self._own:
                blocks += self._expect(entry.routed, now, (self._newest[0] - entry.id[0]) / 1000)
            if blocks >= self._settings.slice_blocks:
                blocks = 0
                await asyncio.sleep(0)

    def _expect(self, routed: Routed, now: float, age_s: float) -> int:
        """Remembers what another picker has placed; the number of blocks of it."""
        slots = self._view.slots_of(np.array([each.epoch for each in routed.placed], np.uint64))
        for each, slot in zip(routed.placed, slots.tolist(), strict=True):
            if slot >= 0 and not (each.is_awaited and age_s > self._settings.awaited_s):
                self._view.expect(slot, each.blocks, each.is_awaited, now - age_s)
        return sum(len(each.blocks) for each in routed.placed)
