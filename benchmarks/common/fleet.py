"""A fleet as agents would publish it, of endpoints that are no engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random

from redis.asyncio import Redis

from picker.agent.publisher import Publisher
from picker.redisview.connection import connect
from picker.redisview.keys import Keys
from picker.redisview.records import WorkerRecord, WorkerState


@asynccontextmanager
async def published(redis: str, pool: str, endpoints: Sequence[str], model: str) -> AsyncIterator[None]:
    """Keeps a ready worker that announces no KV blocks in Redis for each endpoint, until the end of the block."""
    client = connect(redis, Keys(pool))
    publishing = asyncio.gather(*(_publisher(client, pool, endpoint, model).run() for endpoint in endpoints))
    try:
        yield
    finally:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
        await client.aclose()


def _publisher(client: Redis, pool: str, endpoint: str, model: str) -> Publisher:
    publisher = Publisher(client, Keys(pool))
    publisher.begin(
        WorkerRecord(
            worker=endpoint,
            epoch=Random(endpoint).getrandbits(63),
            endpoint=endpoint,
            state=WorkerState.READY,
            models=(model,),
            publishes_kv=False,
        )
    )
    return publisher
