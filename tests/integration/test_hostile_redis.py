"""What a picker makes of a Redis that holds what no agent of ours would write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from redis.asyncio import Redis

from picker.fleet.endpoints import networks
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.view import View
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import KvEvent, KvOp, LoadRecord, Snapshot, WorkerRecord, WorkerState, xor_of
from picker.simulation.valkey import ValkeyServer
from tests.waiting import until

KEYS = Keys("pool")
GOOD = "10.0.0.1:8000"
SETTINGS = FeedSettings(poll_s=0.02, longest_retry_s=0.1)


@pytest.fixture
async def redis() -> AsyncIterator[Redis]:
    server = ValkeyServer()
    await server.start()
    client = connect(server.url, KEYS)
    try:
        yield client
    finally:
        await client.aclose()
        await server.stop()


@asynccontextmanager
async def picker(redis: Redis, settings: FeedSettings = SETTINGS) -> AsyncIterator[tuple[Feed, View]]:
    view = View(stale_after_s=600.0)
    feed = Feed(redis, KEYS, view, settings)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(feed.run())
        yield feed, view
        task.cancel()


async def register(redis: Redis, worker: str, epoch: int, endpoint: str | None = None, **load: Any) -> None:
    record = WorkerRecord(
        worker=worker, epoch=epoch, endpoint=endpoint or worker, state=WorkerState.READY, models=("llama",)
    )
    fields: dict[Any, Any] = {"record": record.pack(), "epoch": epoch, "facts": 1}
    await redis.hset(KEYS.worker(worker), mapping=fields)  # type: ignore[misc]
    await redis.hset(KEYS.load, worker, LoadRecord(epoch, 1, 1, **load).pack())  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    "endpoint", ["evil", "10.0.0.2:1,10.0.0.3:1", "10.0.0.2:1\nx: y", "[fe80::1%a\nb]:1", "10.0.0.2"]
)
async def test_only_an_address_with_a_port_becomes_an_endpoint(redis: Redis, endpoint: str) -> None:
    await register(redis, "bad", 1, endpoint)
    await register(redis, GOOD, 2)
    await register(redis, "v6", 3, "[FD00:0::5]:8000")
    async with picker(redis) as (feed, view):
        await until(lambda: len(view.usable_endpoints()) == 2)
        assert view.usable_endpoints() == (GOOD, "[fd00::5]:8000")
        assert feed.foreign == 1


async def test_who_writes_to_redis_cannot_send_requests_out_of_the_workers_networks(redis: Redis) -> None:
    forged = ("192.0.2.7:443", "127.0.0.1:9901", "169.254.169.254:80")
    for number, endpoint in enumerate(forged):
        await register(redis, f"forged-{number}", 10 + number, endpoint)
    await register(redis, GOOD, 2)
    settings = FeedSettings(poll_s=0.02, longest_retry_s=0.1, networks=networks(["10.0.0.0/24"]))
    async with picker(redis, settings) as (feed, view):
        await until(lambda: feed.foreign == len(forged) and bool(view.usable_endpoints()))
        assert view.usable_endpoints() == (GOOD,)


async def test_a_load_hash_that_turns_into_something_else_stops_nothing(redis: Redis) -> None:
    await register(redis, GOOD, 2, kv_seq=5)
    async with picker(redis) as (feed, view):
        await until(lambda: feed.synced.is_set() and feed.statistics().dirty == 1)
        await redis.set(KEYS.load, "text")
        seen = feed.foreign
        # The dirty worker is reloaded meanwhile, which reads the load records too.
        await until(lambda: feed.foreign > seen + 40)
        assert view.usable_endpoints() == (GOOD,)
        assert feed.faults == 0


async def test_a_reload_that_redis_interrupts_is_made_again(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    await register(redis, GOOD, 2, kv_seq=1, kv_count=2, kv_xor=xor_of([7, 8]))
    await register(redis, "10.0.0.2:8000", 3, kv_seq=1, kv_count=1, kv_xor=7)
    # The first worker's snapshot is up to date, the second one's needs the stream.
    await redis.set(KEYS.snapshot(2), Snapshot(2, 1, (0, 0), [7, 8]).pack())
    await redis.set(KEYS.snapshot(3), Snapshot(3, 0, (0, 0), []).pack())
    await redis.xadd(KEYS.events, {"e": KvEvent(3, 1, KvOp.STORE, (7,)).pack()})
    failures = [ConnectionError("gone")]
    async with picker(redis) as (feed, view):
        events = feed._reader.events

        async def interrupted(*arguments: Any) -> Any:
            if failures:
                raise failures.pop()
            return await events(*arguments)

        monkeypatch.setattr(feed._reader, "events", interrupted)
        await until(lambda: not failures and feed.synced.is_set())
        slots = [view.slot_of(GOOD, 2), view.slot_of("10.0.0.2:8000", 3)]
        await until(lambda: all(slot is not None and view.index.owners(7) >> slot & 1 for slot in slots))


async def test_a_defect_of_ours_leaves_the_view_as_it_is_and_is_tried_again(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(redis, GOOD, 2)
    async with picker(redis) as (feed, view):
        await until(lambda: view.usable_endpoints() == (GOOD,))
        with monkeypatch.context() as broken:
            broken.setattr(view, "update_load", None)
            await until(lambda: feed.faults > 1)
        await register(redis, "10.0.0.2:8000", 3)
        await until(lambda: len(view.usable_endpoints()) == 2)


async def litter(redis: Redis, fields: int) -> None:
    """Load records of workers that no agent has registered."""
    loads = {f"bogus-{n}": LoadRecord(1000 + n, 1, 1).pack() for n in range(fields)}
    await redis.hset(KEYS.load, mapping=loads)  # type: ignore[misc,arg-type]


async def test_load_records_without_workers_take_no_place_from_a_worker_that_comes_later(redis: Redis) -> None:
    await litter(redis, 50)
    async with picker(redis, replace(SETTINGS, max_workers=2)) as (feed, view):
        await until(feed.synced.is_set)
        await register(redis, GOOD, 2)
        await until(lambda: view.usable_endpoints() == (GOOD,))
        assert feed.statistics().workers == 1


async def test_load_records_without_workers_are_looked_up_ever_more_rarely(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await litter(redis, 1)
    async with picker(redis) as (feed, _):
        calls = {"loads": 0, "registrations": 0}
        for name in calls:
            monkeypatch.setattr(feed._reader, name, counting(calls, name, getattr(feed._reader, name)))
        await until(lambda: calls["loads"] >= 60)
        assert 1 <= calls["registrations"] <= 20


def counting(calls: dict[str, int], name: str, command: Callable[..., Any]) -> Callable[..., Any]:
    async def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return await command(*arguments)

    return counted


async def test_a_snapshot_of_more_blocks_than_a_worker_can_have_is_not_read(redis: Redis) -> None:
    blocks = range(1, 102)
    await register(redis, GOOD, 2, kv_seq=1, kv_count=len(blocks), kv_xor=xor_of(blocks))
    await redis.set(KEYS.snapshot(2), Snapshot(2, 1, (0, 0), blocks).pack())
    async with picker(redis, replace(SETTINGS, max_snapshot_blocks=100)) as (feed, view):
        await until(lambda: feed.synced.is_set() and feed.foreign > 0)
        slot = view.slot_of(GOOD, 2)
        assert slot is not None
        assert view.index.digest(slot) == (0, 0)
        commands = await redis.info("commandstats")
        assert "cmdstat_strlen" in commands
        assert not {"cmdstat_get", "cmdstat_getrange"} & set(commands)
        await redis.set(KEYS.snapshot(2), Snapshot(2, 1, (0, 0), blocks[:100]).pack())
        await until(lambda: view.index.digest(slot)[0] == 100)


async def test_a_load_hash_of_another_type_leaves_the_choice_to_envoy(redis: Redis) -> None:
    await redis.set(KEYS.load, "text")
    async with picker(redis) as (feed, view):
        await until(lambda: feed.foreign > 10)
        assert not feed.synced.is_set()
        await redis.delete(KEYS.load)
        await register(redis, GOOD, 2)
        await until(feed.synced.is_set)
        assert view.usable_endpoints() == (GOOD,)


async def test_a_meta_hash_of_another_type_takes_no_worker_away(redis: Redis) -> None:
    await redis.set(KEYS.meta, "text")
    await register(redis, GOOD, 2)
    async with picker(redis) as (feed, view):
        await until(feed.synced.is_set)
        assert view.usable_endpoints() == (GOOD,)
        assert feed.foreign > 0


async def test_a_worker_that_takes_anothers_epoch_and_leaves_it_takes_no_events_with_it(redis: Redis) -> None:
    await register(redis, GOOD, 2)
    await redis.set(KEYS.snapshot(2), Snapshot(2, 0, (0, 0), []).pack())
    async with picker(redis) as (feed, view):
        await until(feed.synced.is_set)
        await register(redis, "10.0.0.2:8000", 2)
        await until(lambda: view.slot_of("10.0.0.2:8000", 2) is not None)
        await register(redis, "10.0.0.2:8000", 3)
        await until(lambda: view.slot_of("10.0.0.2:8000", 3) is not None)
        await redis.xadd(KEYS.events, {"e": KvEvent(2, 1, KvOp.STORE, (7,)).pack()})
        slot = view.slot_of(GOOD, 2)
        assert slot is not None
        await until(lambda: bool(view.index.owners(7) >> slot & 1))


async def test_a_littered_load_hash_is_read_in_pages_and_workers_in_it_are_found_and_followed(redis: Redis) -> None:
    await litter(redis, 5000)
    await register(redis, GOOD, 2)
    await redis.config_resetstat()
    async with picker(redis) as (feed, view):
        await until(feed.synced.is_set)
        assert view.usable_endpoints() == (GOOD,)
        await register(redis, "10.0.0.2:8000", 3)
        await until(lambda: len(view.usable_endpoints()) == 2)
        await register(redis, GOOD, 2, waiting=7)
        slot = view.slot_of(GOOD, 2)
        assert slot is not None
        await until(lambda: int(view.waiting[slot]) == 7)
        await redis.hdel(KEYS.load, GOOD)  # type: ignore[misc]
        await until(lambda: view.slot_of(GOOD, 2) is None)
        assert "cmdstat_hgetall" not in await redis.info("commandstats")
