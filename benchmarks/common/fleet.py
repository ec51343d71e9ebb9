"""A fleet as agents would publish it, of endpoints that are no engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

from redis.asyncio import Redis

from picker.agent.publisher import Load, Publisher
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import WorkerRecord, WorkerState


@dataclass(frozen=True, slots=True)
class Activity:
    """What a worker's cache and queue do: it holds so many index blocks, and changes some of them all the time."""

    blocks: int = 1000
    changed_per_s: int = 100
    every_s: float = 0.5

    async def live(self, publisher: Publisher) -> None:
        """Tells of one worker, until cancelled."""
        rng = Random()
        held = [rng.getrandbits(64) for _ in range(self.blocks)]
        publisher.stored(held)
        changed = round(self.changed_per_s * self.every_s)
        while True:
            publisher.load(Load(running=rng.randrange(4), kv_used=rng.random() / 2))
            await asyncio.sleep(self.every_s)
            gone, held = held[:changed], held[changed:]
            publisher.removed(gone)
            held += (new := [rng.getrandbits(64) for _ in range(changed)])
            publisher.stored(new)


@asynccontextmanager
async def published(
    redis: str, pool: str, endpoints: Sequence[str], model: str, activity: Activity | None = None
) -> AsyncIterator[None]:
    """Keeps a ready worker in Redis for each endpoint, until the end of the block. Without activity it is idle."""
    client = connect(redis, Keys(pool))
    publishers = [_publisher(client, pool, endpoint, model, activity is not None) for endpoint in endpoints]
    live = [activity.live(publisher) for publisher in publishers] if activity else []
    publishing = asyncio.gather(*(publisher.run() for publisher in publishers), *live)
    try:
        yield
    finally:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        await client.aclose()


def _publisher(client: Redis, pool: str, endpoint: str, model: str, publishes_kv: bool) -> Publisher:
    publisher = Publisher(client, Keys(pool))
    publisher.begin(
        WorkerRecord(
            worker=endpoint,
            epoch=Random(endpoint).getrandbits(63),
            endpoint=endpoint,
            state=WorkerState.READY,
            models=(model,),
            publishes_kv=publishes_kv,
        )
    )
    return publisher
