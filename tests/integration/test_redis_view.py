"""Agents to pickers through a real Redis: what is published is mirrored, whatever happens to Redis in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as replace_record
from redis.asyncio import Redis

from picker.agent.publisher import Load, Publisher, PublisherSettings
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.index import PrefixIndex
from picker.fleet.view import View
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import KvEvent, KvOp, LoadRecord, WorkerRecord, WorkerState
from picker.redisview.writer import WriterSettings
from picker.simulation.valkey import ValkeyServer
from tests.waiting import until

DEADLINE_S = 30.0
FAST = FeedSettings(poll_s=0.02, deadline_s=0.5, longest_retry_s=0.2)
PROMPT_PUBLISHER = PublisherSettings(
    coalesce_s=0.002, load_interval_s=0.02, heartbeat_s=0.1, longest_retry_s=0.2, writer=WriterSettings(deadline_s=0.5)
)
BLOCKS = st.integers(1, 60)


def record(worker: str = "10.0.0.1:8000", epoch: int | None = None) -> WorkerRecord:
    return WorkerRecord(
        worker=worker,
        epoch=random.getrandbits(63) if epoch is None else epoch,
        endpoint=worker,
        state=WorkerState.READY,
        models=("llama",),
    )


class Agent:
    """A publisher and what it should have published."""

    def __init__(self, server: ValkeyServer, pool: str, publisher_settings: PublisherSettings):
        self.client = connect(server.url, Keys(pool))
        self.publisher = Publisher(self.client, Keys(pool), publisher_settings)
        self.record = record()
        self.held: set[int] = set()

    def begin(self, worker_record: WorkerRecord) -> None:
        self.record, self.held = worker_record, set()
        self.publisher.begin(worker_record)

    def store(self, blocks: Sequence[int]) -> None:
        self.held.update(blocks)
        self.publisher.stored(blocks)

    def remove(self, blocks: Sequence[int]) -> None:
        self.held.difference_update(blocks)
        self.publisher.removed(blocks)

    def clear(self) -> None:
        self.held.clear()
        self.publisher.cleared()


class Picker:
    """A feed and its view."""

    def __init__(self, server: ValkeyServer, pool: str, feed_settings: FeedSettings, view: View):
        self.client = connect(server.url, Keys(pool))
        self.view = view
        self.feed = Feed(self.client, Keys(pool), self.view, feed_settings)

    def slot(self, agent: Agent) -> int | None:
        return self.view.slot_of(agent.record.worker, agent.record.epoch)

    def trusted(self, agent: Agent, universe: Sequence[int]) -> set[int]:
        """The blocks of `universe` for which the agent's worker gets credit."""
        slot = self.slot(agent)
        return set() if slot is None else {block for block in universe if self.view.index.owners(block) >> slot & 1}

    def mirrors(self, agent: Agent) -> bool:
        """Whether the worker's blocks, all of them and no others, count."""
        slot = self.slot(agent)
        if slot is None:
            return False
        return (
            self.trusted(agent, sorted(agent.held)) == agent.held
            and self.view.index.digest(slot)[0] == len(agent.held)
            and not self.feed.statistics().dirty
        )


class Pool:
    """Starts and stops agents and pickers of one pool."""

    def __init__(self, server: ValkeyServer, name: str = "pool"):
        self.server = server
        self.keys = Keys(name)
        self._name = name
        self._running: dict[object, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Pool:
        self.redis: Redis = connect(self.server.url, self.keys)
        return self

    async def __aexit__(self, *_: object) -> None:
        for owner in list(self._running):
            await self.stop(owner)
        await self.redis.aclose()

    async def agent(
        self, worker_record: WorkerRecord | None = None, publisher_settings: PublisherSettings = PROMPT_PUBLISHER
    ) -> Agent:
        agent = Agent(self.server, self._name, publisher_settings)
        agent.begin(worker_record or record())
        self._start(agent, agent.publisher.run)
        return agent

    async def picker(self, feed_settings: FeedSettings = FAST, view: View | None = None) -> Picker:
        picker = Picker(self.server, self._name, feed_settings, view or View())
        self._start(picker, picker.feed.run)
        return picker

    def _start(self, owner: object, run: Callable[[], object]) -> None:
        self._running[owner] = asyncio.ensure_future(run())  # type: ignore[arg-type]

    async def stop(self, owner: Agent | Picker | object, is_cancelled: bool = False) -> None:
        task = self._running.pop(owner)
        # A second cancel would hide that the first one was lost. `cancelling()` does not tell: a timeout that has just
        # expired inside the task counts there too.
        if not is_cancelled:
            task.cancel()
        _, pending = await asyncio.wait([task], timeout=DEADLINE_S)
        task.cancel()
        await owner.client.aclose()  # type: ignore[attr-defined]
        assert not pending, f"{owner} was cancelled and did not end"
        assert task.cancelled(), task.exception()


@pytest.fixture
async def pool(redis_server: ValkeyServer) -> AsyncIterator[Pool]:
    async with Pool(redis_server) as pool:
        yield pool


async def until_keys(redis: Redis, count: int, *keys: str) -> None:
    """Waits until so many of these keys exist."""
    async with asyncio.timeout(DEADLINE_S):
        while await redis.exists(*keys) != count:
            await asyncio.sleep(0.01)


async def stays(condition: Callable[[], bool], seconds: float) -> None:
    """Fails if a condition does not hold all the time."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        assert condition()
        await asyncio.sleep(0.01)


async def test_what_an_agent_publishes_a_picker_mirrors(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 1001))
    await until(lambda: picker.mirrors(agent))
    agent.remove(range(500, 1001))
    await until(lambda: picker.mirrors(agent))
    agent.clear()
    agent.store([7])
    await until(lambda: picker.mirrors(agent))
    assert picker.feed.statistics().lag_events == 0


async def test_a_picker_that_comes_late_reads_snapshots(pool: Pool) -> None:
    agents = [await pool.agent(record(f"10.0.0.{n}:8000")) for n in range(20)]
    for number, agent in enumerate(agents):
        agent.store(range(1, 100 + number))
    await until(lambda: all(not agent.publisher.statistics().pending_blocks for agent in agents))
    await asyncio.sleep(0.1)
    await pool.redis.delete(pool.keys.events)
    picker = await pool.picker()
    await until(lambda: all(picker.mirrors(agent) for agent in agents))


async def test_a_picker_that_comes_late_reads_what_came_after_a_snapshot(pool: Pool) -> None:
    agent = await pool.agent()
    await until(lambda: agent.publisher.statistics().snapshots == 1)
    agent.store(range(1, 1000))
    early = await pool.picker()
    await until(lambda: early.mirrors(agent))
    late = await pool.picker()
    await until(lambda: late.mirrors(agent))
    assert agent.publisher.statistics().snapshots == 1


async def test_loads_and_facts_reach_the_view(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.publisher.load(Load(running=3, waiting=2, waiting_tokens=900, kv_used=0.5))
    await until(lambda: (slot := picker.slot(agent)) is not None and int(picker.view.waiting_tokens[slot]) == 900)
    changed = WorkerRecord(
        worker=agent.record.worker,
        epoch=agent.record.epoch,
        endpoint=agent.record.endpoint,
        state=WorkerState.READY,
        models=("llama",),
        adapters=("sql",),
    )
    agent.publisher.facts(changed)
    slot = picker.slot(agent)
    assert slot is not None
    await until(lambda: bool(picker.view.serving("sql")[slot]))
    assert picker.slot(agent) == slot


async def test_facts_of_an_epoch_that_has_not_begun_are_refused(pool: Pool) -> None:
    agent = await pool.agent()
    with pytest.raises(ValueError, match="call begin"):
        agent.publisher.facts(record(epoch=agent.record.epoch + 1))


async def test_a_gap_in_the_events_is_healed_by_a_snapshot(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 200))
    await until(lambda: picker.mirrors(agent))
    reloads = picker.feed.statistics().reloads
    slot = picker.slot(agent)
    stray = KvEvent(agent.record.epoch, agent.publisher.statistics().seq + 5, KvOp.STORE, (99_999,))
    await pool.redis.xadd(pool.keys.events, {"e": stray.pack()})
    await until(lambda: picker.feed.statistics().reloads > reloads)
    await until(lambda: picker.mirrors(agent))
    assert picker.slot(agent) == slot
    assert 99_999 not in picker.trusted(agent, [99_999])


async def test_a_slot_with_a_gap_gets_no_credit_until_it_is_healed(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 50))
    await until(lambda: picker.mirrors(agent))
    await pool.stop(agent)
    await pool.redis.delete(pool.keys.snapshot(agent.record.epoch))
    stray = KvEvent(agent.record.epoch, agent.publisher.statistics().seq + 5, KvOp.STORE, (99_999,))
    await pool.redis.xadd(pool.keys.events, {"e": stray.pack()})
    await until(lambda: picker.feed.statistics().dirty == 1)
    assert picker.trusted(agent, range(1, 50)) == set()
    assert picker.slot(agent) is not None
    await until_keys(pool.redis, 1, pool.keys.wanted(agent.record.epoch))


async def test_a_mirror_that_differs_silently_is_found_and_reloaded(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 200))
    await until(lambda: picker.mirrors(agent))
    slot = picker.slot(agent)
    assert slot is not None
    picker.view.index.remove(slot, [100])
    picker.view.index.store(slot, [99_999])
    await until(lambda: picker.mirrors(agent) and not picker.trusted(agent, [99_999]))


async def test_a_trimmed_stream_loses_nothing(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 200))
    await until(lambda: picker.mirrors(agent))
    await pool.stop(picker)
    for start in range(1000, 3000, 100):
        agent.store(range(start, start + 100))
        await asyncio.sleep(0.005)
    await pool.redis.xtrim(pool.keys.events, maxlen=1, approximate=False)
    again = await pool.picker()
    await until(lambda: again.mirrors(agent))
    assert again.feed.synced.is_set()


async def test_events_that_are_lost_after_a_snapshot_and_followed_by_none_are_made_up_for(pool: Pool) -> None:
    """No gap shows that they are lost: the agent counts more than there is, until it is asked for a new snapshot."""
    seldom = replace(PROMPT_PUBLISHER, snapshot_interval_s=3600.0)
    agent = await pool.agent(publisher_settings=seldom)
    await until(lambda: agent.publisher.statistics().snapshots == 1)
    agent.store(range(1, 200))
    await until(lambda: not agent.publisher.statistics().pending_blocks)
    await asyncio.sleep(0.1)
    await pool.redis.delete(pool.keys.events)
    late = await pool.picker()
    await until(lambda: late.mirrors(agent))


async def test_more_changes_than_may_be_pending_are_made_up_for_by_a_snapshot(pool: Pool) -> None:
    few = PublisherSettings(heartbeat_s=0.1, pending_blocks=500)
    agent, picker = await pool.agent(publisher_settings=few), await pool.picker()
    for start in range(0, 5000, 100):
        agent.store(range(start + 1, start + 101))
    assert agent.publisher.statistics().pending_blocks <= 500
    await until(lambda: picker.mirrors(agent))


async def test_a_redis_that_comes_back_empty_is_filled_again_and_nothing_is_forgotten_meanwhile(pool: Pool) -> None:
    agents, picker = [await pool.agent(record(f"10.0.0.{n}:8000")) for n in range(3)], await pool.picker()
    for agent in agents:
        agent.store(range(1, 300))
    await until(lambda: all(picker.mirrors(agent) for agent in agents))
    slots = [picker.slot(agent) for agent in agents]

    await pool.server.kill()
    await until(lambda: not picker.feed.connected)
    agents[0].store(range(1000, 1100))
    agents[1].clear()
    serves = [picker.trusted(agent, range(1, 300)) == set(range(1, 300)) for agent in agents]
    assert serves == [True, True, True]

    await pool.server.start()
    await until(lambda: all(picker.mirrors(agent) for agent in agents))
    assert [picker.slot(agent) for agent in agents] == slots
    assert picker.feed.connected
    late = await pool.picker()
    await until(lambda: all(late.mirrors(agent) for agent in agents))


async def test_an_outage_makes_no_worker_stale(pool: Pool) -> None:
    """The beat is the last one before the outage, which outlasts the time after which a worker is stale."""
    agent = await pool.agent()
    picker = await pool.picker(replace(FAST, watched_step_s=0.2), View(stale_after_s=2.0))
    await until(lambda: (slot := picker.slot(agent)) is not None and bool(picker.view.fresh()[slot]))
    slot = picker.slot(agent)
    pool.server.pause()
    await pool.stop(agent)
    await asyncio.sleep(2.5)
    pool.server.resume()
    await until(lambda: picker.feed.connected)
    assert picker.view.fresh()[slot]


async def test_an_emptied_redis_is_filled_again_even_if_no_connection_breaks(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 300))
    await until(lambda: picker.mirrors(agent))
    slot = picker.slot(agent)
    await pool.redis.flushall()
    agent.store(range(500, 600))
    await until(lambda: picker.mirrors(agent))
    late = await pool.picker()
    await until(lambda: late.mirrors(agent))
    assert picker.slot(agent) == slot


async def test_a_frozen_redis_blocks_nobody(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 300))
    await until(lambda: picker.mirrors(agent))
    pool.server.pause()
    await until(lambda: not picker.feed.connected and not agent.publisher.statistics().is_connected)
    agent.store(range(1000, 1200))
    assert picker.trusted(agent, range(1, 300)) == set(range(1, 300))
    pool.server.resume()
    await until(lambda: picker.mirrors(agent))


async def test_agents_and_pickers_end_while_redis_is_frozen(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    pool.server.pause()
    async with asyncio.timeout(DEADLINE_S):
        await pool.stop(agent)
        await pool.stop(picker)
    pool.server.resume()


async def test_no_cancellation_is_lost(pool: Pool) -> None:
    busy = PublisherSettings(coalesce_s=0.0, load_interval_s=0.0, heartbeat_s=0.0)
    rng = random.Random(11)
    for _ in range(100):
        agent = await pool.agent(publisher_settings=busy)
        picker = await pool.picker(FeedSettings(poll_s=0.0))
        for _ in range(rng.randrange(20, 120)):
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            await pool.stop(picker)
            await pool.stop(agent)


async def test_no_cancellation_is_lost_that_comes_as_redis_goes(pool: Pool) -> None:
    pickers = [await pool.picker(FeedSettings(poll_s=0.0)) for _ in range(60)]
    await until(lambda: all(picker.feed.synced.is_set() for picker in pickers))
    pool.server.pause()
    # All of them have a command under way when the server goes, and meet their ends within a few turns of the loop.
    await asyncio.sleep(0.05)
    await pool.server.kill()
    async with asyncio.timeout(DEADLINE_S):
        for picker in pickers:
            await asyncio.sleep(0)
            pool._running[picker].cancel()
        for picker in pickers:
            await pool.stop(picker, is_cancelled=True)


async def test_agents_and_pickers_wait_for_a_redis_that_is_not_there_yet(redis_server: ValkeyServer) -> None:
    await redis_server.kill()
    async with Pool(redis_server) as pool:
        agent, picker = await pool.agent(), await pool.picker()
        agent.store(range(1, 100))
        await until(lambda: agent.publisher.statistics().failures > 2)
        assert not picker.feed.connected
        await redis_server.start()
        await until(lambda: picker.mirrors(agent))


async def test_a_new_epoch_replaces_the_old_one(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    old = picker.slot(agent)
    agent.begin(record())
    agent.store(range(50, 60))
    await until(lambda: picker.mirrors(agent))
    assert picker.slot(agent) != old
    assert list(picker.view.slots()) == [picker.slot(agent)]
    assert picker.trusted(agent, range(1, 100)) == set(range(50, 60))


async def test_of_two_agents_of_one_worker_the_later_one_counts(pool: Pool) -> None:
    first, picker = await pool.agent(), await pool.picker()
    first.store(range(1, 100))
    await until(lambda: picker.mirrors(first))
    second = await pool.agent(record())
    second.store(range(200, 300))
    await until(lambda: first.publisher.statistics().is_fenced)
    await until(lambda: picker.mirrors(second))
    await pool.stop(first)
    await stays(lambda: picker.mirrors(second), 0.3)


async def test_the_earlier_agent_takes_over_again_when_the_later_ones_lease_is_over(pool: Pool) -> None:
    first = await pool.agent()
    await until(lambda: first.publisher.statistics().is_connected)
    second = await pool.agent(record())
    await until(lambda: first.publisher.statistics().is_fenced)
    await pool.stop(second)
    await pool.redis.delete(pool.keys.worker(second.record.worker))
    picker = await pool.picker()
    first.store(range(1, 100))
    await until(lambda: picker.mirrors(first))


async def test_an_agent_that_ends_says_that_its_worker_is_draining(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    slot = picker.slot(agent)
    assert picker.view.ready[slot]
    await pool.stop(agent)
    await until(lambda: not picker.view.ready[slot])


async def test_a_worker_that_begins_again_and_again_leaves_no_snapshots_behind(pool: Pool) -> None:
    agent = await pool.agent()
    epochs = []
    for number in range(5):
        agent.store(range(1000 * number, 1000 * number + 100))
        epochs.append(agent.record.epoch)
        await until_keys(pool.redis, 1, *map(pool.keys.snapshot, epochs))
        agent.begin(record(agent.record.worker))
    await until_keys(pool.redis, 0, *map(pool.keys.snapshot, epochs))


@pytest.mark.parametrize("publishes_kv", [True, False])
async def test_what_was_placed_on_a_worker_is_forgotten_when_its_cache_is_emptied(
    pool: Pool, publishes_kv: bool
) -> None:
    agent = await pool.agent(replace_record(record(), publishes_kv=publishes_kv))
    picker = await pool.picker()
    await until(lambda: picker.slot(agent) is not None and picker.feed.synced.is_set())
    slot = picker.slot(agent)
    assert slot is not None
    picker.view.place(slot, [1, 2, 3], False, 1.0, 192, 0.0)
    assert picker.view.hit_blocks([1, 2, 3])[slot] == 3
    agent.store([7])
    agent.clear()
    await until(lambda: picker.view.hit_blocks([1, 2, 3])[slot] == 0)


async def test_a_dead_worker_is_retired_and_removed_from_redis(pool: Pool) -> None:
    short_lease = PublisherSettings(heartbeat_s=0.1, writer=WriterSettings(lease_s=0.3))
    agent = await pool.agent(publisher_settings=short_lease)
    picker = await pool.picker(FeedSettings(poll_s=0.02, retire_after_s=0.6, missing_grace_s=0.2))
    await until(lambda: picker.slot(agent) is not None)
    await pool.stop(agent)
    await until(lambda: picker.slot(agent) is None)
    await until_keys(pool.redis, 0, pool.keys.load, pool.keys.snapshot(agent.record.epoch))
    await until(lambda: not picker.feed.statistics().workers)


async def test_a_worker_that_was_retired_comes_back_with_its_beat(pool: Pool) -> None:
    agent = await pool.agent()
    picker = await pool.picker(FeedSettings(poll_s=0.02, retire_after_s=0.5))
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    task = pool._running.pop(agent)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: picker.slot(agent) is None)
    agent.publisher.begin(agent.record)
    agent.held.clear()
    agent.store(range(1, 50))
    pool._start(agent, agent.publisher.run)
    await until(lambda: picker.mirrors(agent))


async def test_two_pickers_see_the_same(pool: Pool) -> None:
    rng = random.Random(7)
    agents = [await pool.agent(record(f"10.0.0.{n}:8000")) for n in range(4)]
    first = await pool.picker()
    for _ in range(40):
        agent = rng.choice(agents)
        agent.store(rng.sample(range(1, 500), 30))
        agent.remove(rng.sample(range(1, 500), 30))
        await asyncio.sleep(0.002)
    second = await pool.picker()
    await until(lambda: all(picker.mirrors(agent) for picker in (first, second) for agent in agents))
    for agent in agents:
        assert first.trusted(agent, range(1, 500)) == second.trusted(agent, range(1, 500)) == agent.held


async def test_foreign_data_is_counted_and_ignored(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    await pool.redis.hset(pool.keys.load, mapping={"junk": b"\x00\x01", b"\xff\xfe": b"", "text": b"hello" * 50})
    await pool.redis.xadd(pool.keys.events, {"e": b"\x01\x09junk"})
    await pool.redis.xadd(pool.keys.events, {"other": b"field"})
    await until(lambda: picker.feed.foreign == 5)
    await pool.redis.hset(pool.keys.load, "fake", LoadRecord(epoch=1, beat=1, facts=1).pack())
    await pool.redis.set(pool.keys.worker("fake"), b"not a hash")
    await until(lambda: picker.feed.foreign > 5)
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    assert list(picker.view.slots()) == [picker.slot(agent)]


async def test_a_snapshot_that_does_not_decode_is_asked_for_again(pool: Pool) -> None:
    agent = await pool.agent()
    agent.store(range(1, 100))
    await until(lambda: not agent.publisher.statistics().pending_blocks)
    await pool.redis.set(pool.keys.snapshot(agent.record.epoch), b"garbage", ex=60)
    picker = await pool.picker()
    await until(lambda: picker.mirrors(agent))
    assert picker.feed.foreign >= 1


@pytest.mark.parametrize("name", ["load", "events"])
async def test_a_key_of_another_type_takes_no_worker_away(pool: Pool, name: str) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    key = getattr(pool.keys, name)
    await pool.redis.set(key, b"a string")
    await until(lambda: picker.feed.foreign >= 3)
    assert picker.mirrors(agent)
    await pool.redis.delete(key)
    agent.store(range(100, 200))
    await until(lambda: picker.mirrors(agent))


async def test_without_a_common_hash_no_cache_counts_but_workers_do(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    await pool.redis.hset(pool.keys.meta, "hash", "sha256-of-the-future")
    await until(lambda: not picker.trusted(agent, range(1, 100)))
    assert picker.slot(agent) is not None
    late = await pool.picker()
    await until(lambda: late.feed.synced.is_set())
    assert not late.trusted(agent, range(1, 100))
    assert late.slot(agent) is not None
    await pool.redis.hdel(pool.keys.meta, "hash")
    await until(lambda: picker.mirrors(agent) and late.mirrors(agent))


async def test_a_redis_that_refuses_writes_is_waited_for(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    # A replica of nobody: reads work, writes are refused.
    await pool.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    agent.store(range(1, 100))
    await until(lambda: not agent.publisher.statistics().is_connected)
    await pool.redis.execute_command("REPLICAOF", "NO", "ONE")
    await until(lambda: picker.mirrors(agent))


async def test_what_the_agents_hash_with_is_forgotten_when_the_last_of_them_has_gone(pool: Pool) -> None:
    short = PublisherSettings(heartbeat_s=0.05, writer=WriterSettings(snapshot_ttl_s=0.5))
    agent = await pool.agent(publisher_settings=short)
    await until_keys(pool.redis, 1, pool.keys.meta)
    await asyncio.sleep(1.0)
    assert await pool.redis.exists(pool.keys.meta)
    await pool.redis.delete(pool.keys.meta)
    await until_keys(pool.redis, 1, pool.keys.meta)
    await pool.stop(agent)
    await until_keys(pool.redis, 0, pool.keys.meta)


async def test_a_full_redis_is_waited_for(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    await pool.redis.config_set("maxmemory", "1")
    agent.store(range(1, 100))
    await until(lambda: not agent.publisher.statistics().is_connected)
    await pool.redis.config_set("maxmemory", "0")
    await until(lambda: picker.mirrors(agent))


async def test_a_large_snapshot_is_loaded_in_slices_between_which_others_run(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await pool.agent()
    agent.store(range(1, 50_001))
    await until(lambda: not agent.publisher.statistics().pending_blocks)
    snapshots = agent.publisher.statistics().snapshots
    await pool.redis.set(pool.keys.wanted(agent.record.epoch), "1")
    await until(lambda: agent.publisher.statistics().snapshots > snapshots)

    turn = 0
    slices: list[tuple[int, int]] = []
    store = PrefixIndex.store

    def recording_store(index: PrefixIndex, slot: int, blocks: Sequence[int]) -> None:
        slices.append((turn, len(blocks)))
        store(index, slot, blocks)

    monkeypatch.setattr(PrefixIndex, "store", recording_store)
    picker = await pool.picker()
    while not picker.mirrors(agent):
        turn += 1
        await asyncio.sleep(0)
    turns = [at for at, _ in slices]
    assert max(size for _, size in slices) <= FAST.slice_blocks
    assert len(set(turns)) == len(turns) == 50_000 // FAST.slice_blocks


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.lists(BLOCKS, min_size=1, max_size=20)),
        st.tuples(st.just("remove"), st.lists(BLOCKS, min_size=1, max_size=20)),
        st.tuples(st.sampled_from(["clear", "begin", "wait", "lose", "flush"]), st.just([])),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, name=st.uuids())
async def test_once_it_is_quiet_the_mirror_is_what_was_published(
    redis_server: ValkeyServer, steps: list[tuple[str, list[int]]], name: object
) -> None:
    async with Pool(redis_server, str(name)) as pool:
        agent, early = await pool.agent(), await pool.picker()
        for step, blocks in steps:
            await take(pool, agent, step, blocks)
        late = await pool.picker()
        for picker in (early, late):
            await until(lambda picker=picker: picker.mirrors(agent))  # type: ignore[misc]
            assert picker.trusted(agent, range(1, 61)) == agent.held


async def take(pool: Pool, agent: Agent, step: str, blocks: list[int]) -> None:
    match step:
        case "store":
            agent.store(blocks)
        case "remove":
            agent.remove(blocks)
        case "clear":
            agent.clear()
        case "begin":
            agent.begin(record())
        case "wait":
            await asyncio.sleep(0.01)
        case "lose":
            await pool.redis.delete(pool.keys.events)
        case "flush":
            await pool.redis.delete(pool.keys.events, pool.keys.load, pool.keys.worker(agent.record.worker))
