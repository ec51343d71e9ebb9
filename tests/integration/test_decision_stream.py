"""Decisions in a real Redis stream."""

import pytest
from redis.asyncio import Redis

from picker.redisview.decisions import DecisionStream
from picker.redisview.keys import Keys
from picker.simulation.valkey import ValkeyServer


async def test_the_stream_keeps_about_the_last_ones(redis_server: ValkeyServer) -> None:
    async with Redis.from_url(redis_server.url) as client:
        keys = Keys("p")
        stream = DecisionStream(client, keys, length=100)
        for number in range(20):
            await stream.append([b'{"n":%d}\n' % (50 * number + each) for each in range(50)])
        assert 100 <= await client.xlen(keys.decisions) < 400
        [(_, newest)] = await client.xrevrange(keys.decisions, count=1)
        assert newest == {b"decision": b'{"n":999}'}


async def test_a_redis_that_is_gone_is_an_os_error() -> None:
    async with Redis.from_url("redis://127.0.0.1:1") as client:
        with pytest.raises(OSError, match="Connection"):
            await DecisionStream(client, Keys("p"), 10).append([b"{}"])
