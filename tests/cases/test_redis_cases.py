"""What went wrong elsewhere between pickers and Redis, by the ids of the field cases."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace as replace_record
from redis.crc import key_slot
from structlog.testing import capture_logs

import picker as package
from picker.agent.publisher import Load
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.sharing import Sharing
from picker.fleet.view import View
from picker.redisview.keys import SCHEMA, Keys
from picker.redisview.locate import Address, Answer, Asking
from picker.redisview.records import KvEvent, KvOp, WorkerState
from picker.simulation.process import Process
from picker.simulation.valkey import ValkeyServer
from tests.integration import redis_servers
from tests.integration.redis_servers import BINARIES
from tests.integration.relay import Relay, relay
from tests.integration.test_redis_deployments import mirrored, pool_at
from tests.integration.test_redis_view import Picker, Pool, record, until_keys
from tests.integration.test_serve import config, is_alive, serve
from tests.integration.test_sharing import picker as sharing_picker
from tests.integration.traffic import until as until_async
from tests.waiting import until


@pytest.fixture
async def server() -> AsyncIterator[ValkeyServer]:
    async with ValkeyServer() as server:
        yield server


@pytest.fixture
async def pool(server: ValkeyServer) -> AsyncIterator[Pool]:
    async with Pool(server) as pool:
        yield pool


@contextlib.asynccontextmanager
async def sharing(pool: Pool, one: Picker) -> AsyncIterator[Sharing]:
    """Beside a feed, as in `picker serve`."""
    sharing = Sharing(one.client, pool.keys, one.view, one.feed.synced, one.feed.watch)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(sharing.run())
        try:
            yield sharing
        finally:
            task.cancel()


@pytest.mark.parametrize("url", ["redis://no-such-host.invalid:6379", "redis://127.0.0.1:1", "unix:///no/such.sock"])
async def test_re_01_a_picker_starts_and_serves_without_redis_and_says_so(url: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, redis=url)
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[0]))
        await process.wait_until(lambda: _logged(process, "redis_down"))
        assert process.is_running
    finally:
        process.kill()


async def _logged(process: Process, text: str) -> bool:
    return text in process.log.read_text()


async def test_re_01_a_redis_that_comes_up_later_is_found(server: ValkeyServer) -> None:
    await server.kill()
    async with Pool(server) as pool:
        agent, picker = await pool.agent(), await pool.picker()
        agent.store(range(1, 100))
        await until(lambda: agent.publisher.statistics().failures > 1)
        await server.start()
        await until(lambda: picker.mirrors(agent))


def test_re_04_all_keys_of_a_pool_are_in_one_slot() -> None:
    for name in ("default", "a}b{c", "with:colon", "ü"):
        keys = Keys(name)
        each = [keys.load, keys.events, keys.meta, keys.routed, keys.worker("10.0.0.1:8000"), keys.worker("{x}"),
                keys.snapshot(1), keys.snapshot(2), keys.wanted(1), keys.share(0), keys.share(63)]  # fmt: skip
        assert len({key_slot(key.encode()) for key in each}) == 1, name


async def test_re_04_pipelines_and_transactions_work_on_a_cluster(tmp_path: Path) -> None:
    async with redis_servers.cluster(BINARIES[-1], tmp_path) as group, pool_at(group.url) as pool:
        _, first = await mirrored(pool)
        second = await pool.picker()
        async with sharing(pool, first) as one, sharing(pool, second) as other:
            await until(lambda: one.statistics().pickers == other.statistics().pickers == 1)
            assert (one.statistics().refused, one.statistics().is_seated) == (0, True)


async def test_re_05_after_a_failover_nobody_goes_on_writing_to_the_old_primary(tmp_path: Path) -> None:
    async with redis_servers.sentinels(BINARIES[-1], tmp_path) as group, pool_at(group.url) as pool:
        agent, picker = await mirrored(pool)
        old = await group.primary()
        async with sharing(pool, picker) as shares:
            await until(lambda: shares.statistics().is_seated)
            await group.sentinels[0].ask("SENTINEL", "FAILOVER", "main")
            await until_async(lambda: _moved(group, old.port))
            new = await group.primary()
            await until_async(lambda: new.ask("EXISTS", *(pool.keys.share(seat) for seat in range(64))))
            agent.store(range(1000, 1100))
            await until(lambda: picker.mirrors(agent))
            assert picker.feed.connected


async def _moved(group: redis_servers.Sentinels, port: int) -> bool:
    return (await group.primary()).port != port


async def test_re_06_a_full_redis_makes_no_worker_stale_and_takes_none_away(pool: Pool) -> None:
    settings = FeedSettings(poll_s=0.02, deadline_s=0.5, watched_step_s=0.2, retire_after_s=2.0)
    agent, picker = await pool.agent(), await pool.picker(settings, View(stale_after_s=1.0))
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    async with sharing(pool, picker) as shares:
        await until(lambda: shares.statistics().is_seated)
        await pool.redis.config_set("maxmemory", "1")
        await until(lambda: shares.statistics().refused > 0 and not agent.publisher.statistics().is_connected)
        for number in range(30):
            agent.store(range(1000 + 100 * number, 1100 + 100 * number))
            await asyncio.sleep(0.1)
            assert picker.view.usable_endpoints() == (agent.record.endpoint,)
            assert picker.feed.connected
        assert agent.publisher.statistics().failures > 0
        await pool.redis.config_set("maxmemory", "0")
        await until(lambda: picker.mirrors(agent))
        await until(lambda: not picker.feed.watch.is_held)


async def test_re_07_what_a_worker_holds_counts_no_longer_than_its_agent_is_heard(pool: Pool) -> None:
    agent = await pool.agent()
    settings = FeedSettings(poll_s=0.02, missing_grace_s=0.3, retire_after_s=1.0)
    picker = await pool.picker(settings, View(stale_after_s=0.5))
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    task = pool._running.pop(agent)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not picker.view.usable_endpoints())
    await pool.redis.delete(pool.keys.worker(agent.record.worker))
    await until(lambda: picker.slot(agent) is None)
    picker.view.sweep(time.monotonic())
    assert len(picker.view.index) == 0
    await until_keys(pool.redis, 0, pool.keys.load, pool.keys.snapshot(agent.record.epoch))


async def test_re_07_a_worker_that_is_deleted_is_forgotten(pool: Pool) -> None:
    agent = await pool.agent()
    picker = await pool.picker(FeedSettings(poll_s=0.02, missing_grace_s=0.2))
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    await pool.stop(agent)
    await pool.redis.hdel(pool.keys.load, agent.record.worker)  # type: ignore[misc]
    await until(lambda: picker.slot(agent) is None)


async def test_re_08_an_engine_that_restarts_holds_nothing_and_other_news_of_it_change_nothing(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    slot = picker.slot(agent)
    agent.publisher.facts(replace_record(agent.record, labels={"side-car": "restarted"}))
    agent.publisher.load(Load(running=9))
    await until(lambda: slot is not None and int(picker.view.running[slot]) == 9)
    assert picker.mirrors(agent)
    assert picker.slot(agent) == slot
    agent.begin(record())
    await until(lambda: picker.slot(agent) is not None)
    assert picker.trusted(agent, range(1, 100)) == set()
    assert all(not picker.view.index.owners(block) for block in range(1, 100))


async def test_re_09_no_command_walks_the_key_space(pool: Pool) -> None:
    """Through a worker's whole life, also its end; neither on Redis' side nor by what the user would be allowed."""
    agent = await pool.agent()
    picker = await pool.picker(FeedSettings(poll_s=0.02, retire_after_s=0.6, missing_grace_s=0.2))
    async with sharing(pool, picker) as shares:
        agent.store(range(1, 100))
        await until(lambda: picker.mirrors(agent) and shares.statistics().is_seated)
        agent.begin(record())
        agent.store(range(1, 50))
        await until(lambda: picker.mirrors(agent))
        await pool.stop(agent)
        await pool.redis.delete(pool.keys.worker(agent.record.worker))
        await until(lambda: picker.slot(agent) is None)
        await until_keys(pool.redis, 0, pool.keys.load)
    sent = {name.removeprefix("cmdstat_") for name in await pool.redis.info("commandstats")}
    assert {"xread", "hgetall", "set"} <= sent
    assert not sent & {"keys", "scan", "flushall", "flushdb", "sort", "dbsize"}


async def test_re_10_a_worker_of_the_same_name_elsewhere_gets_no_credit(pool: Pool) -> None:
    here = await pool.agent(replace_record(record("10.0.0.1:8000"), worker="pod-1.ns"))
    there = await pool.agent(replace_record(record("10.0.0.2:8000"), worker="pod-1.ns2"))
    picker = await pool.picker()
    here.store(range(1, 100))
    await until(lambda: picker.mirrors(here) and picker.slot(there) is not None)
    hits = picker.view.hit_blocks(range(1, 100))
    assert (hits[picker.slot(here)], hits[picker.slot(there)]) == (99, 0)


async def test_re_11_a_short_blip_is_logged_once_and_over_at_once(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    with capture_logs() as logs:
        async with sharing(pool, picker):
            pool.server.pause()
            await until(lambda: not picker.feed.connected)
            for _ in range(500):
                picker.view.hit_blocks(range(1, 100))
            pool.server.resume()
            await until(lambda: picker.feed.connected and agent.publisher.statistics().is_connected)
    events = [(log["event"], log.get("worker")) for log in logs]
    assert events.count(("redis_down", None)) == 1
    assert len(events) <= 6


async def test_re_13_a_lost_node_is_asked_after_once_for_all_who_wait() -> None:
    asked: list[Address] = []
    dead, alive = Address("10.0.0.1", 1), Address("10.0.0.2", 2)

    async def ask(seed: Address) -> Answer | None:
        asked.append(seed)
        await asyncio.sleep(0.02)
        if seed == dead:
            raise ConnectionError("refused")
        return Answer(Address("10.0.0.3", 3))

    asking = Asking([dead, alive], ask, "nodes")
    found = await asyncio.gather(*(asking.find() for _ in range(200)))
    assert set(found) == {Address("10.0.0.3", 3)}
    assert asked == [dead, alive]
    for _ in range(200):
        asking.suspect()
    await asyncio.gather(*(asking.find() for _ in range(200)))
    # Not again within a moment, and then first who knew it.
    assert asked == [dead, alive]
    await asyncio.sleep(0.25)
    await asyncio.gather(*(asking.find() for _ in range(200)))
    assert asked == [dead, alive, alive]


async def test_re_14_a_redis_that_restarts_is_not_stormed(server: ValkeyServer) -> None:
    async with Pool(server) as pool:
        agent = await pool.agent()
        pickers = [await pool.picker() for _ in range(20)]
        await until(lambda: all(picker.mirrors(agent) for picker in pickers))
        await server.kill()
        await until(lambda: not any(picker.feed.connected for picker in pickers))
        await server.start()
        await until(lambda: all(picker.feed.connected and picker.mirrors(agent) for picker in pickers))
        stats = await pool.redis.info("stats")
        # Two loops each; a handful is ours and the server's own start.
        assert stats["total_connections_received"] <= 20 * 3 + 10


async def test_re_17_a_worker_that_is_taken_out_is_out_for_all_pickers_and_all_of_the_time(pool: Pool) -> None:
    agent, pickers = await pool.agent(), [await pool.picker() for _ in range(2)]
    await until(lambda: all(picker.mirrors(agent) for picker in pickers))
    agent.publisher.facts(replace_record(agent.record, state=WorkerState.UNHEALTHY))
    await until(lambda: not any(picker.view.usable_endpoints() for picker in pickers))
    for _ in range(30):
        await asyncio.sleep(0.03)
        assert not any(picker.view.usable_endpoints() for picker in pickers)
    agent.publisher.facts(agent.record)
    await until(lambda: all(picker.view.usable_endpoints() for picker in pickers))


async def test_re_18_a_picker_that_restarts_lengthens_no_lease(pool: Pool) -> None:
    agent, picker = await pool.agent(), await pool.picker()
    await until(lambda: picker.mirrors(agent))
    task = pool._running.pop(agent)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    key = pool.keys.worker(agent.record.worker)
    left_ms = await pool.redis.pttl(key)
    await pool.stop(picker)
    again = await pool.picker()
    async with sharing(pool, again) as shares:
        await until(lambda: again.slot(agent) is not None and shares.statistics().is_seated)
    assert 0 < await pool.redis.pttl(key) < left_ms


def test_re_19_a_look_up_removes_nothing_and_clean_up_is_in_small_parts() -> None:
    from tests.unit.fleets import Worker

    view = View()
    gone = view.admit(Worker("gone", epoch=1), now=0.0)
    view.index.store(gone, range(1, 20_001))
    view.retire(gone)
    before = len(view.index)
    for _ in range(100):
        assert view.hit_blocks(range(1, 10_001)).sum() == 0
    assert len(view.index) == before == 20_000
    steps = []
    while len(view.index):
        left = len(view.index)
        view.sweep(1.0)
        steps.append(left - len(view.index))
    assert max(steps) <= 5000


async def test_re_20_connections_that_die_silently_are_replaced(server: ValkeyServer) -> None:
    async with relay(server.url) as between, Pool(between) as pool:  # type: ignore[arg-type]
        agent, picker = await pool.agent(), await pool.picker()
        agent.store(range(1, 100))
        await until(lambda: picker.mirrors(agent))
        between.drop_silently()
        agent.store(range(1000, 1100))
        await until(lambda: picker.mirrors(agent))
        assert picker.feed.connected


def test_re_21_nothing_on_the_way_of_a_request_asks_redis() -> None:
    """Not even for a header: what decides knows no Redis, and the picker's own pick awaits nobody but threads."""
    root = Path(package.__file__).parent
    on_the_way = [root / "picking.py", *(root / "requests").rglob("*.py"), *(root / "scheduling").rglob("*.py"),
                  *(root / "prompts").rglob("*.py"), *(root / "extproc").rglob("*.py")]  # fmt: skip
    for file in on_the_way:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if "redis" in name], file


@pytest.mark.parametrize("skew_s", [90, -90])
async def test_re_22_clocks_that_differ_change_nothing(pool: Pool, skew_s: int) -> None:
    """Only a server writes times, as ids of stream entries; and a failover can change whose clock that is."""
    at_ms = int((time.time() + skew_s) * 1000)
    await pool.redis.xadd(pool.keys.events, {"e": KvEvent(1, 1, KvOp.CLEAR).pack()}, id=f"{at_ms}-0")
    agent, picker = await pool.agent(), await pool.picker(view=View(stale_after_s=2.0))
    agent.store(range(1, 100))
    await until(lambda: picker.mirrors(agent))
    agent.store(range(1000, 1100))
    await until(lambda: picker.mirrors(agent))
    assert picker.view.usable_endpoints() == (agent.record.endpoint,)
    task = pool._running.pop(agent)
    task.cancel()
    await until(lambda: not picker.view.usable_endpoints())


@pytest.mark.parametrize(("delay_ms", "late"), [(5, 0.0), (50, 0.0), (150, 0.0), (5, 0.05)])
async def test_re_24_a_slow_redis_makes_the_view_late_and_nothing_else(
    server: ValkeyServer, delay_ms: int, late: float
) -> None:
    async with relay(server.url) as between, Pool(server) as direct, Pool(between) as pool:  # type: ignore[arg-type]
        agent = await direct.agent()
        picker = await pool.picker(FeedSettings(poll_s=0.02))
        agent.store(range(1, 100))
        await until(lambda: picker.mirrors(agent))
        between.delay_s, between.late = delay_ms / 1000, late
        async with sharing(pool, picker):
            for number in range(20):
                agent.store(range(1000 + 100 * number, 1100 + 100 * number))
                started = time.thread_time()
                picker.view.hit_blocks(range(1, 100))
                assert time.thread_time() - started < 0.05
                await asyncio.sleep(0.05)
            await until(lambda: picker.mirrors(agent))
            assert _bounded(between)


def _bounded(between: Relay) -> bool:
    """Two loops of the feed, one of sharing, and our own."""
    return between.open <= 8


async def test_re_26_pools_and_versions_do_not_see_each_other(server: ValkeyServer) -> None:
    async with Pool(server, "pool") as pool, Pool(server, "pool-2") as other:
        agent, theirs = await pool.agent(record("10.0.0.1:1")), await other.agent(record("10.0.0.2:1"))
        picker = await pool.picker()
        theirs.store(range(1, 100))
        agent.store(range(1, 50))
        await until(lambda: picker.mirrors(agent))
        old = pool.keys.load.replace(f"picker{SCHEMA}", "picker0")
        await pool.redis.hset(old, "10.0.0.9:1", "of another schema")  # type: ignore[misc]
        await asyncio.sleep(0.2)
        assert picker.view.usable_endpoints() == ("10.0.0.1:1",)
        assert picker.feed.foreign == 0


_BUSY_PICKER = """
    import asyncio, sys, time
    from picker.fleet.sharing import Sharing
    from picker.fleet.view import View
    from picker.fleet.watch import Watch
    from picker.redisview.connection import connect
    from picker.redisview.keys import Keys
    from tests.integration.test_sharing import KEYS, view_of

    async def main():
        view, synced = view_of(3), asyncio.Event()
        synced.set()
        for _ in range(100):
            view.place(next(iter(view.slots())), [1, 2, 3], True, 1.0, 500, time.monotonic())
        await Sharing(connect(sys.argv[1], KEYS), KEYS, view, synced, Watch(0.0, 1.0)).run()

    asyncio.run(main())
"""


async def test_re_28_what_a_killed_picker_had_in_flight_vanishes(server: ValkeyServer, tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_BUSY_PICKER), server.url]
    process = Process("picker", command, tmp_path / "log", {"PYTHONPATH": str(Path.cwd())})
    async with sharing_picker(server) as survivor:
        process.start()
        try:
            await until(lambda: survivor.sees() == 100)
            process.signal(signal.SIGKILL)
            await until(lambda: survivor.sees() == 0)
        finally:
            process.kill()
