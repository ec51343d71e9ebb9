"""Whatever an engine does and whatever is lost on the way: once it is quiet, the mirror holds what the engine told.

A reference cache with random admissions, copies, evictions anywhere, clears, restarts, batches that are lost, late or
out of order, a Redis that is emptied; through a real agent, real sockets and a real Redis to the view of a picker.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from redis.asyncio import Redis

from picker.agent.config import AgentConfig, WorkerConfig
from picker.agent.publisher import PublisherSettings
from picker.agent.service import Agent
from picker.agent.subscriber import SubscriberSettings
from picker.agent.worker import AgentSettings
from picker.fleet.feed import Feed
from picker.fleet.feed_settings import FeedSettings
from picker.fleet.view import View
from picker.prompts import chain
from picker.redisview.keys import Keys
from picker.simulation.valkey import ValkeyServer
from tests.integration.engine_doubles import Pages, serving
from tests.waiting import until

MODEL = "m"
SIZE = 32
"""Tokens of an engine block: two make an index block."""
LONGEST = 6

Path = tuple[int, ...]
PROMPTS = [tuple(number >> bit & 1 for bit in range(LONGEST)) for number in range(2**LONGEST)]


def tokens(path: Path) -> list[int]:
    return [choice + 2 * depth for depth, choice in enumerate(path) for _ in range(SIZE)]


def name(path: Path) -> int:
    return hash(path) % 2**63


class Engine:
    """A cache that publishes what happens to it, as vLLM does, and what of that can be replayed.

    `told`: copies of blocks by their path, as somebody must see them who has had every batch since the last loss.
    """

    def __init__(self, pages: Pages, rng: random.Random) -> None:
        self._pages = pages
        self._rng = rng
        self._context = zmq.asyncio.Context()
        self._events = zmq.Context.shadow(self._context.underlying).socket(zmq.PUB)
        self._replay = self._context.socket(zmq.ROUTER)
        self.events_port = self._events.bind_to_random_port("tcp://127.0.0.1")
        self.replay_port = self._replay.bind_to_random_port("tcp://127.0.0.1")
        self.told: Counter[Path] = Counter()
        self._held: Counter[Path] = Counter()
        self._ring: dict[int, bytes] = {}
        self.number = 0
        self._started = 1
        self._is_lost = False
        self._late: list[tuple[int, bytes]] = []

    async def serve(self) -> None:
        while True:
            asker, _, start = await self._replay.recv_multipart()
            for number, payload in self._ring.items():
                if number >= int.from_bytes(start, "big"):
                    await self._replay.send_multipart([asker, b"", b"topic", number.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([asker, b"", b"", b"\xff" * 8, b""])

    def close(self) -> None:
        self._events.close(linger=0)
        self._replay.close(linger=0)
        self._context.destroy(linger=0)

    # -- what can happen

    def admit(self) -> None:
        """A prompt of any length comes; what of it is not there is computed, now and then in two copies."""
        path = self._rng.choice(PROMPTS)[: self._rng.randint(1, LONGEST)]
        held = next((n for n in range(len(path)) if not self._held[path[: n + 1]]), len(path))
        events = self._store(path, held if held < len(path) else len(path) - 1)
        if self._rng.random() < 0.2:
            events += self._store(path, held if held < len(path) else len(path) - 1)
        self.publish(*events)

    def evict(self) -> None:
        """Blocks go, ancestors of others too."""
        going = [path for path in self._held if self._rng.random() < 0.3]
        self.publish(*(self._removal(path) for path in going))

    def clear(self) -> None:
        self._held.clear()
        self.publish({"type": "AllBlocksCleared"})

    def restart(self) -> None:
        self._started += 1
        self._held.clear()
        self.told.clear()
        self._ring.clear()
        self._late.clear()
        self.number, self._is_lost = 0, False
        self._pages.pages["/metrics"] = self.metrics()
        self.admit()

    def metrics(self) -> str:
        return f'vllm:num_requests_running{{engine="0"}} 0\nprocess_start_time_seconds {self._started}.0\n'

    def lose(self) -> None:
        """A batch that nobody gets, and that cannot be had again."""
        self.admit_in_vain()
        self._ring.clear()
        self._is_lost = True

    def admit_in_vain(self) -> None:
        path = self._rng.choice(PROMPTS)
        held = next((n for n in range(len(path)) if not self._held[path[: n + 1]]), len(path) - 1)
        self._store(path, held)
        self.number += 1

    def drop(self) -> None:
        """A batch that is not received, and can be had again."""
        self._late = []
        self.evict_silently()

    def evict_silently(self) -> None:
        going = [path for path in self._held if self._rng.random() < 0.2]
        self._keep(*(self._removal(path) for path in going))

    def delay(self) -> None:
        """A batch that comes after the next one."""
        path = self._rng.choice(PROMPTS)
        held = next((n for n in range(len(path)) if not self._held[path[: n + 1]]), len(path) - 1)
        self._late.append(self._keep(*self._store(path, held)))

    # -- how it is told

    def publish(self, *events: dict[str, Any]) -> None:
        number, payload = self._keep(*events)
        self._send(number, payload)
        late, self._late = self._late, []
        for each in late:
            self._send(*each)

    def _keep(self, *events: dict[str, Any]) -> tuple[int, bytes]:
        """Into the ring, and into what is told."""
        if self._is_lost:
            self.told.clear()
            self._is_lost = False
        for event in events:
            self._tell(event)
        # Engines put the time there: no two batches are alike.
        payload = msgspec.msgpack.encode([self._started * 1e6 + self.number, [*events], 0])
        self._ring[self.number] = payload
        self.number += 1
        return self.number - 1, payload

    def _send(self, number: int, payload: bytes) -> None:
        self._events.send_multipart([b"topic", number.to_bytes(8, "big"), payload])

    def _store(self, path: Path, held: int) -> list[dict[str, Any]]:
        for length in range(held + 1, len(path) + 1):
            self._held[path[:length]] += 1
        if held == len(path):
            return []
        new = [name(path[:length]) for length in range(held + 1, len(path) + 1)]
        store = {"type": "BlockStored", "block_hashes": new, "block_size": SIZE, "medium": "GPU"}
        store |= {"parent_block_hash": name(path[:held]) if held else None, "token_ids": tokens(path)[held * SIZE :]}
        return [store | {"lora_id": None}]

    def _removal(self, path: Path) -> dict[str, Any]:
        self._held[path] -= 1
        if not self._held[path]:
            del self._held[path]
        return {"type": "BlockRemoved", "block_hashes": [name(path)], "medium": "GPU"}

    def _tell(self, event: dict[str, Any]) -> None:
        by_name = {name(path[:length]): path[:length] for path in PROMPTS for length in range(1, LONGEST + 1)}
        if event["type"] == "AllBlocksCleared":
            self.told.clear()
        elif event["type"] == "BlockRemoved":
            (path,) = (by_name[value] for value in event["block_hashes"])
            # A path that is kept with no copies is one that others follow.
            if self.told[path]:
                self.told[path] -= 1
            self._forget()
        else:
            first = by_name[event["block_hashes"][0]]
            if len(first) == 1 or first[:-1] in self.told:
                self.told.update(by_name[value] for value in event["block_hashes"])

    def _forget(self) -> None:
        parents = {path[:-1] for path in self.told}
        gone = [path for path, copies in self.told.items() if not copies and path not in parents]
        for path in gone:
            del self.told[path]
        if gone:
            self._forget()

    def depth(self, path: Path) -> int:
        """Index blocks of this prompt that can be hit."""
        whole = next((n for n in range(len(path)) if not self.told.get(path[: n + 1])), len(path))
        return whole * SIZE // chain.INDEX_TOKENS


@asynccontextmanager
async def engine(rng: random.Random) -> AsyncIterator[tuple[Engine, Pages]]:
    models = {"data": [{"id": MODEL, "owned_by": "vllm"}]}
    async with serving({"/health": 200, "/v1/models": models}) as pages, asyncio.TaskGroup() as tasks:
        double = Engine(pages, rng)
        sources = {"endpoint": f"tcp://127.0.0.1:{double.events_port}"}
        sources["replay_endpoint"] = f"tcp://127.0.0.1:{double.replay_port}"
        pages.pages |= {"/metrics": double.metrics(), "/kv_event_sources": {"0": sources}}
        task = tasks.create_task(double.serve())
        try:
            yield double, pages
        finally:
            task.cancel()
            await asyncio.wait([task])
            double.close()


@asynccontextmanager
async def mirrored(server: ValkeyServer, url: str) -> AsyncIterator[tuple[View, Agent, Feed, Redis]]:
    config = AgentConfig(redis=server.url, workers=[WorkerConfig(url=url, name="w0")], probe_interval_s=0.05, listen="")
    settings = AgentSettings(
        subscriber=SubscriberSettings(recheck_s=0.1), publisher=PublisherSettings(heartbeat_s=0.2, load_interval_s=0.02)
    )
    view, agent = View(), Agent(config, settings)
    async with Redis.from_url(server.url) as client, asyncio.TaskGroup() as tasks:
        feed = Feed(client, Keys("default"), view, FeedSettings(poll_s=0.02))
        running = [tasks.create_task(agent.run()), tasks.create_task(feed.run())]
        try:
            yield view, agent, feed, client
        finally:
            for task in running:
                task.cancel()


def depths(view: View) -> list[int]:
    start = chain.scope(MODEL)
    return [int(view.hit_blocks(chain.index_blocks(start, tokens(path))).max()) for path in PROMPTS]


def is_quiet(double: Engine, agent: Agent, feed: Feed) -> bool:
    """Whether every batch has gone all the way. Depths can be right by chance before."""
    worker = agent.statistics()["w0"]
    if worker.subscriber is None or worker.subscriber.next != double.number or worker.publisher.pending_blocks:
        return False
    seqs = [fence.seq for fence in feed._mirror.fences if fence.epoch == worker.epoch and not fence.is_dirty]
    return seqs == [worker.publisher.seq]


@pytest.mark.parametrize("seed", range(4))
async def test_the_mirror_is_what_the_engine_has_told(redis_server: ValkeyServer, seed: int) -> None:
    rng = random.Random(seed)
    async with engine(rng) as (double, pages), mirrored(redis_server, pages.url) as (view, agent, feed, redis):
        await until(lambda: view.ready.any())
        happenings = [double.admit] * 8 + [double.evict] * 4 + [double.drop, double.delay] * 2
        happenings += [double.clear, double.restart, double.lose]
        most = [0] * len(PROMPTS)
        for _ in range(6):
            for _ in range(25):
                rng.choice(happenings)()
                most = [max(depth, double.depth(path)) for depth, path in zip(most, PROMPTS, strict=True)]
                await asyncio.sleep(rng.choice([0, 0, 0.001, 0.01]))
                over = [found > depth for found, depth in zip(depths(view), most, strict=True)]
                assert not any(over), "nothing is credited that was not there at some time since it was quiet"
            if rng.random() < 0.5:
                await redis.flushall()
            # What was lost last shows with the next batch.
            double.publish()
            expected = [double.depth(path) for path in PROMPTS]
            await until(lambda: is_quiet(double, agent, feed))
            await until(lambda expected=expected: depths(view) == expected)
            most = expected
        assert agent.statistics()["w0"].blocks.counters.refused == 0
