"""The subscriber against a publisher with vLLM's sockets."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from picker.agent.events import Batch, Removed
from picker.agent.subscriber import Order, Place, Statistics, Subscriber, SubscriberSettings
from tests.waiting import until

END = (-1).to_bytes(8, "big", signed=True)
QUICK = SubscriberSettings(reply_timeout_s=0.3, recheck_s=0.2, recheck_max_s=0.4)


class Publisher:
    """An engine's two sockets. `keeps`: batches in the ring. `topics`: as newer vLLM's replies."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        keeps: int = 1000,
        topics: bool = True,
        endpoints: tuple[str, str] = ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
    ) -> None:
        self.keeps = keeps
        self.topics = topics
        self.drops_replies: set[int] = set()
        self._events, self._replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        self.events, self.replay = bind(self._events, endpoints[0]), bind(self._replay, endpoints[1])
        self.starts = 0
        self.restart()

    def restart(self) -> None:
        """As far as the wire shows: numbers from 0, an empty ring."""
        self.starts += 1
        self.next = 0
        self.ring: deque[tuple[int, bytes]] = deque(maxlen=self.keeps)

    async def publish(self, *values: int, live: bool = True) -> None:
        """One batch, which removes blocks of these hashes. Not `live`: the subscriber misses it."""
        events = [{"type": "BlockRemoved", "block_hashes": [value]} for value in values]
        await self.publish_payload(msgspec.msgpack.encode([float(self.starts), events, 0]), live=live)

    async def publish_payload(self, payload: bytes, live: bool = True) -> None:
        self.ring.append((self.next, payload))
        self.next += 1
        if live:
            await self.send(b"any topic", (self.next - 1).to_bytes(8, "big"), payload)

    async def send(self, *frames: bytes) -> None:
        await self._events.send_multipart(frames)

    async def serve(self) -> None:
        topic = [b"topic"] if self.topics else []
        while True:
            client, delimiter, start = await self._replay.recv_multipart()
            assert delimiter == b""
            for number, payload in list(self.ring):
                if number >= int.from_bytes(start, "big") and number not in self.drops_replies:
                    await self._replay.send_multipart([client, b"", *topic, number.to_bytes(8, "big"), payload])
            self.drops_replies = set()
            await self._replay.send_multipart([client, b"", *([b""] if self.topics else []), END, b""])

    def close(self) -> None:
        self._events.close(0)
        self._replay.close(0)


Engines = Callable[..., Publisher]


def bind(socket: zmq.asyncio.Socket, endpoint: str) -> str:
    socket.bind(endpoint)
    return str(socket.last_endpoint.decode())


class Log:
    """What the subscriber told, as a list: hashes, "lost", "restarted"."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def batch(self, batch: Batch) -> None:
        self.entries.append([value for event in batch.events if isinstance(event, Removed) for value in event.hashes])

    def lost(self) -> None:
        self.entries.append("lost")

    def restarted(self) -> None:
        self.entries.append("restarted")


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def engine(context: zmq.asyncio.Context) -> Iterator[Engines]:
    """Makes publishers and closes them: a context waits for sockets that are left to the garbage collector."""
    publishers: list[Publisher] = []

    def make(**settings: Any) -> Publisher:
        publishers.append(Publisher(context, **settings))
        return publishers[-1]

    yield make
    for publisher in publishers:
        publisher.close()


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        started = [tasks.create_task(each) for each in coroutines]
        yield
        for task in started:
            task.cancel()


def subscriber(
    context: zmq.asyncio.Context, publisher: Publisher, log: Log, settings: SubscriberSettings = QUICK
) -> Subscriber:
    return Subscriber(context, publisher.events, publisher.replay, log, settings)


async def connected(publisher: Publisher, log: Log, replays: bool = True) -> None:
    """Until live batches arrive. Leaves the log empty."""
    async with asyncio.timeout(10):
        while not log.entries:
            await publisher.publish(0)
            await asyncio.sleep(0.02)
    await until(lambda: len(log.entries) == publisher.next or not replays)
    log.entries.clear()


async def test_batches_come_in_order(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await connected(publisher, log)
        for value in range(50):
            await publisher.publish(value)
        await until(lambda: len(log.entries) == 50)
    assert log.entries == [[value] for value in range(50)]


@pytest.mark.parametrize("topics", [True, False], ids=["four frames", "three frames"])
async def test_what_was_published_before_is_replayed(
    context: zmq.asyncio.Context, engine: Engines, topics: bool
) -> None:
    publisher, log = engine(topics=topics), Log()
    for value in range(5):
        await publisher.publish(value)
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await until(lambda: len(log.entries) == 5)
        await publisher.publish(5)
        await until(lambda: len(log.entries) == 6)
    assert log.entries == [[value] for value in range(6)]


async def test_a_ring_that_has_wrapped_gives_what_it_still_holds(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(keeps=3), Log()
    for value in range(10):
        await publisher.publish(value)
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await until(lambda: len(log.entries) == 3)
    assert log.entries == [[7], [8], [9]]


async def test_a_gap_is_filled(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    follower = subscriber(context, publisher, log, SubscriberSettings(recheck_s=60.0))
    async with running(publisher.serve(), follower.run()):
        await connected(publisher, log)
        await publisher.publish(1, live=False)
        await publisher.publish(2, live=False)
        await publisher.publish(3)
        await publisher.publish(4)
        await until(lambda: len(log.entries) == 4)
        statistics = follower.statistics()
    assert log.entries == [[1], [2], [3], [4]]
    assert statistics.gaps >= 1 and statistics.lost == statistics.restarts == 0


async def test_a_last_batch_that_was_missed_is_found_in_the_silence_after_it(
    context: zmq.asyncio.Context, engine: Engines
) -> None:
    publisher, log = engine(), Log()
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await connected(publisher, log)
        await publisher.publish(1, live=False)
        await until(lambda: log.entries == [[1]])


async def test_a_gap_that_is_no_longer_kept_is_told(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(keeps=3), Log()
    follower = subscriber(context, publisher, log, SubscriberSettings(recheck_s=60.0))
    async with running(publisher.serve(), follower.run()):
        await connected(publisher, log)
        for value in range(1, 9):
            await publisher.publish(value, live=False)
        await publisher.publish(9)
        await until(lambda: [9] in log.entries)
    assert log.entries == ["lost", [7], [8], [9]]


async def test_a_replay_with_a_hole_is_asked_for_again(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    for value in range(6):
        await publisher.publish(value)
    publisher.drops_replies = {2, 3}
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await until(lambda: len(log.entries) == 6)
    assert log.entries == [[value] for value in range(6)]


async def test_numbers_that_go_back_are_a_restart_whose_first_batches_are_replayed(
    context: zmq.asyncio.Context, engine: Engines
) -> None:
    publisher, log = engine(), Log()
    async with running(
        publisher.serve(), subscriber(context, publisher, log, SubscriberSettings(recheck_s=60.0)).run()
    ):
        await connected(publisher, log)
        await publisher.publish(1)
        await publisher.publish(2)
        await until(lambda: len(log.entries) == 2)
        publisher.restart()
        await publisher.publish(10, live=False)
        await publisher.publish(11)
        await publisher.publish(12)
        await until(lambda: [12] in log.entries)
    assert log.entries == [[1], [2], "restarted", [10], [11], [12]]


async def test_a_restart_is_noticed_though_the_new_engine_has_overtaken_the_old_one(
    context: zmq.asyncio.Context, engine: Engines
) -> None:
    publisher, log = engine(), Log()
    async with running(
        publisher.serve(), subscriber(context, publisher, log, SubscriberSettings(recheck_s=60.0)).run()
    ):
        await connected(publisher, log)
        numbers = publisher.next
        publisher.restart()
        for value in range(numbers + 3):
            await publisher.publish(value, live=False)
        await publisher.publish(99)
        await until(lambda: [99] in log.entries)
    assert log.entries == ["restarted", *[[value] for value in range(numbers + 3)], [99]]


async def test_a_restarted_engine_that_is_silent_is_noticed(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    async with running(publisher.serve(), subscriber(context, publisher, log).run()):
        await connected(publisher, log)
        publisher.restart()
        await until(lambda: log.entries == ["restarted"])
        await publisher.publish(1)
        await until(lambda: log.entries == ["restarted", [1]])


async def test_without_a_replay_socket_a_gap_is_a_loss_and_going_back_a_restart(
    context: zmq.asyncio.Context, engine: Engines
) -> None:
    publisher, log = engine(), Log()
    async with running(Subscriber(context, publisher.events, None, log, QUICK).run()):
        await connected(publisher, log, replays=False)
        await publisher.publish(1)
        await publisher.publish(2, live=False)
        await publisher.publish(3)
        publisher.restart()
        await publisher.publish(4)
        await until(lambda: [4] in log.entries)
    assert [entry for entry in log.entries if entry != [0]] == [[1], "lost", [3], "restarted", [4]]


async def test_a_replay_socket_that_does_not_answer_is_given_up(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    follower = subscriber(context, publisher, log)
    async with running(follower.run()):
        await connected(publisher, log, replays=False)
        await publisher.publish(1, live=False)
        await publisher.publish(2)
        await until(lambda: [2] in log.entries)
        failed = follower.statistics().replays_failed
    assert [entry for entry in log.entries if entry != [0]] == ["lost", [2]]
    assert failed > 0


async def test_strange_frames_are_counted_and_skipped(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    follower = subscriber(context, publisher, log)
    async with running(publisher.serve(), follower.run()):
        await connected(publisher, log)
        for frames in ((b"alone",), (b"t", b"\0\0\1", b""), (b"t", END, b""), (b"t", b"\0" * 8, b"", b"more")):
            await publisher.send(*frames)
        await publisher.publish(1)
        await until(lambda: log.entries == [[1]])
        assert follower.statistics().ignored_frames == 4


async def test_garbage_in_its_place_is_a_loss_told_once(context: zmq.asyncio.Context, engine: Engines) -> None:
    publisher, log = engine(), Log()
    follower = subscriber(context, publisher, log)
    async with running(publisher.serve(), follower.run()):
        await connected(publisher, log)
        await publisher.publish_payload(b"\xc1")
        await publisher.publish_payload(b"\xc1\xc1")
        await publisher.publish(1)
        await until(lambda: [1] in log.entries)
        assert follower.statistics().malformed == 2
    assert log.entries == ["lost", [1]]


async def test_an_engine_that_comes_later_is_waited_for(context: zmq.asyncio.Context, engine: Engines) -> None:
    early = engine()
    endpoints = early.events, early.replay
    early.close()
    log = Log()
    follower = Subscriber(context, *endpoints, log, QUICK)
    async with running(follower.run()):
        await until(lambda: follower.statistics().replays_failed > 0)
        late = engine(endpoints=endpoints)
        async with running(late.serve()):
            await connected(late, log)


def test_the_order_remembers_a_bounded_number_of_batches() -> None:
    order = Order(remembered=2)
    for number in range(4):
        order.take(number, b"%d" % number)
    assert order.place(3, b"3") is Place.REPEATED
    assert order.place(3, b"another") is Place.FOREIGN
    assert order.place(1, b"1") is Place.FOREIGN
    assert order.place(4, b"") is Place.NEXT
    assert order.place(5, b"") is Place.BEYOND


def test_statistics_of_a_new_subscriber_are_zero() -> None:
    assert Statistics().next == 0
