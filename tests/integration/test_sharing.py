"""Pickers tell one another what they have placed, through a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from redis.asyncio import Redis

from picker.fleet.sharing import Sharing, SharingSettings
from picker.fleet.view import View
from picker.fleet.watch import Watch
from picker.redisview.connection import connect
from picker.redisview.exchange import ExchangeSettings
from picker.redisview.keys import Keys
from picker.simulation.valkey import ValkeyServer
from tests.unit.fleets import Worker, endpoint
from tests.waiting import until

KEYS = Keys("pool")
SETTINGS = SharingSettings(every_s=0.02, longest_retry_s=0.2)
CHAIN = list(range(1000, 1040))


@dataclass
class Picker:
    view: View
    sharing: Sharing
    task: asyncio.Task[None] | None = None

    def slot(self, worker: int = 1) -> int:
        return next(slot for slot in self.view.slots() if self.view.facts(slot).epoch == worker)

    def place(self, worker: int = 1, chain: list[int] | None = None) -> object:
        return self.view.place(self.slot(worker), chain or CHAIN, True, 1.0, 500, time.monotonic())

    def sees(self, worker: int = 1) -> int:
        """Requests on a worker, by all pickers."""
        return int(self.view.inflight.outstanding(time.monotonic()).requests[self.slot(worker)])

    def hits(self, worker: int = 1, chain: list[int] | None = None) -> int:
        return int(self.view.hit_blocks(chain or CHAIN)[self.slot(worker)])


def view_of(workers: int, publishes_kv: bool = True) -> View:
    view = View()
    for number in range(1, workers + 1):
        worker = Worker(f"w{number}", epoch=number, endpoint=endpoint(number), publishes_kv=publishes_kv)
        view.index.trust(view.admit(worker, now=0.0), True)
    return view


@asynccontextmanager
async def picker(
    server: ValkeyServer, settings: SharingSettings = SETTINGS, workers: int = 3, publishes_kv: bool = True
) -> AsyncIterator[Picker]:
    client = connect(server.url, KEYS)
    view, synced = view_of(workers, publishes_kv), asyncio.Event()
    synced.set()
    one = Picker(view, Sharing(client, KEYS, view, synced, Watch(0.0, 1.0), settings))
    async with asyncio.TaskGroup() as tasks:
        one.task = tasks.create_task(one.sharing.run())
        try:
            yield one
        finally:
            one.task.cancel()
    await client.aclose()


@pytest.fixture
async def redis(redis_server: ValkeyServer) -> AsyncIterator[Redis]:
    client = connect(redis_server.url, KEYS)
    yield client
    await client.aclose()


async def until_sharing(*pickers: Picker) -> None:
    statistics = [each.sharing.statistics for each in pickers]
    await until(lambda: all(each().is_seated and each().pickers == len(pickers) - 1 for each in statistics))


async def test_what_one_picker_places_and_releases_the_others_see(redis_server: ValkeyServer) -> None:
    async with picker(redis_server) as first, picker(redis_server) as second, picker(redis_server) as third:
        await until_sharing(first, second, third)
        bookings = [first.place(), first.place(), second.place(worker=2)]
        await until(lambda: [third.sees(1), third.sees(2), third.sees(3)] == [2, 1, 0])
        await until(lambda: [first.sees(1), first.sees(2)] == [2, 1])
        owners = (first, first, second)
        for owner, booking in zip(owners, bookings, strict=True):
            owner.view.inflight.release(booking, time.monotonic())  # type: ignore[arg-type]
        await until(lambda: all(each.sees(n) == 0 for each in (first, second, third) for n in (1, 2)))


async def test_what_another_picker_places_is_expected_on_its_worker(redis_server: ValkeyServer) -> None:
    async with picker(redis_server) as first, picker(redis_server) as second:
        await until_sharing(first, second)
        first.place(worker=2)
        await until(lambda: second.hits(2) == len(CHAIN))
        assert second.hits(1) == 0
        assert len(second.view.speculative._slots) == 1


async def test_prefixes_on_workers_that_announce_nothing_are_known_to_a_picker_that_comes_later(
    redis_server: ValkeyServer, redis: Redis
) -> None:
    async with picker(redis_server, publishes_kv=False) as first:
        await until(lambda: first.sharing.statistics().is_seated)
        long = list(range(5000, 7000))
        first.place(worker=3, chain=long)
        async with asyncio.timeout(30):
            while not await redis.xlen(KEYS.routed):
                await asyncio.sleep(0.01)
    async with picker(redis_server, publishes_kv=False) as second:
        await until(lambda: second.hits(3, long) == len(long))


async def test_a_picker_that_is_killed_leaves_nothing_behind(redis_server: ValkeyServer, redis: Redis) -> None:
    short = replace(SETTINGS, renew_s=0.1, exchange=ExchangeSettings(lease_s=0.5))
    async with picker(redis_server, short) as survivor:
        async with picker(redis_server, short) as killed:
            await until_sharing(survivor, killed)
            for _ in range(100):
                killed.place()
            await until(lambda: survivor.sees() == 100)
        await until(lambda: survivor.sees() == 0)
        assert survivor.sharing.statistics().pickers == 0
        assert len(await redis.keys("*inflight*")) == 1


async def test_without_redis_a_picker_goes_by_its_own_books_and_shares_again_later(redis_server: ValkeyServer) -> None:
    short = replace(SETTINGS, exchange=ExchangeSettings(lease_s=0.5, deadline_s=0.2))
    async with picker(redis_server, short) as first, picker(redis_server, short) as second:
        await until_sharing(first, second)
        first.place()
        second.place()
        await until(lambda: second.sees() == 2)
        redis_server.pause()
        await until(lambda: second.sees() == 1)
        redis_server.resume()
        await until(lambda: second.sees() == 2 == first.sees())
        await redis_server.kill()
        await until(lambda: second.sees() == 1)
        await redis_server.start()
        await until(lambda: second.sees() == 2 == first.sees())


async def test_a_picker_that_was_frozen_finds_another_seat(redis_server: ValkeyServer, redis: Redis) -> None:
    """Its seat was given away while it was frozen; then both write to it once, and neither is lost or counted twice."""
    two_seats = replace(SETTINGS, exchange=ExchangeSettings(seats=2))
    async with picker(redis_server, two_seats) as first, picker(redis_server, two_seats) as second:
        await until_sharing(first, second)
        first.place()
        second.place()
        await until(lambda: first.sees() == second.sees() == 2)
        mine, theirs = first.sharing._peers.seat, second.sharing._peers.seat
        assert {mine, theirs} == {0, 1}
        first.sharing._peers.seat = theirs
        await redis.delete(KEYS.share(mine or 0))
        await until(lambda: first.sharing._peers.seat != second.sharing._peers.seat)
        await until_sharing(first, second)
        await until(lambda: first.sees() == second.sees() == 2)


async def test_more_pickers_than_seats_still_hear(redis_server: ValkeyServer) -> None:
    one_seat = replace(SETTINGS, exchange=ExchangeSettings(seats=1))
    async with picker(redis_server, one_seat) as first:
        await until(lambda: first.sharing.statistics().is_seated)
        async with picker(redis_server, one_seat) as second:
            first.place()
            await until(lambda: second.sees() == 1)
            assert not second.sharing.statistics().is_seated


async def test_a_full_redis_is_read_and_what_it_refuses_is_counted(redis_server: ValkeyServer, redis: Redis) -> None:
    async with picker(redis_server) as first, picker(redis_server) as second:
        await until_sharing(first, second)
        await redis.config_set("maxmemory", "1")
        await until(lambda: first.sharing.statistics().refused > 3)
        first.place()
        assert first.sees() == 1
        await redis.config_set("maxmemory", "0")
        await until(lambda: second.sees() == 1)


async def test_foreign_data_in_seats_and_stream_is_ignored_and_counted(
    redis_server: ValkeyServer, redis: Redis
) -> None:
    await redis.set(KEYS.share(0), b"junk")
    await redis.hset(KEYS.share(1), "a", "b")  # type: ignore[misc]
    await redis.xadd(KEYS.routed, {"r": b"junk"})
    await redis.xadd(KEYS.routed, {"other": b"field"})
    async with picker(redis_server) as first, picker(redis_server) as second:
        await until_sharing(first, second)
        first.place()
        await until(lambda: second.sees() == 1 and second.hits() == len(CHAIN))
        assert second.sharing.statistics().foreign == 3
        await redis.delete(KEYS.routed)
        await redis.set(KEYS.routed, "text")
        await until(lambda: second.sharing.statistics().foreign > 5)
        first.place()
        await until(lambda: second.sees() == 2)


async def test_an_emptied_redis_costs_nothing_but_a_moment(redis_server: ValkeyServer, redis: Redis) -> None:
    async with picker(redis_server) as first, picker(redis_server) as second:
        await until_sharing(first, second)
        first.place()
        await until(lambda: second.sees() == 1)
        await redis.flushall()
        other = list(range(9000, 9010))
        first.place(worker=2, chain=other)
        await until(lambda: second.sees(1) == 1 and second.sees(2) == 1 and second.hits(2, other) == len(other))


async def test_the_stream_of_placed_prefixes_is_bounded(redis_server: ValkeyServer, redis: Redis) -> None:
    few = replace(SETTINGS, every_s=0.001, exchange=ExchangeSettings(routed_entries=10))
    async with picker(redis_server, few, publishes_kv=False) as one:
        for number in range(300):
            one.place(chain=[number * 10_000 + block for block in range(1000)])
            if number % 4 == 0:
                await asyncio.sleep(0.005)
        await until(lambda: not one.view.routed)
        # Redis trims whole nodes of its own, of at most 100 entries.
        assert await redis.xlen(KEYS.routed) <= 110
