"""What one would do without a mirror: ask Redis with each request."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

_BISECT = """
local hashes, n, low = ARGV[1], #ARGV[1] / 8, 0
local function get(i) return redis.call('GET', KEYS[1] .. string.sub(hashes, i * 8 - 7, i * 8)) end
local high, found = n, ''
while low < high do
  local middle = math.floor((low + high + 1) / 2)
  local owners = get(middle)
  if owners then low, found = middle, owners else high = middle - 1 end
end
return {low, found}
"""


def _key(prefix: bytes, block: int) -> bytes:
    return prefix + block.to_bytes(8, "little")


class Asking:
    """A key for each block, with the numbers of its owners. Prompts are asked for, so only theirs are there."""

    prefix = b"block:{benchmark}:"

    def __init__(self, redis: Redis):
        self._redis = redis
        self._bisect = redis.register_script(_BISECT)

    def write(self, redis: BlockingRedis, owners: dict[int, list[int]]) -> None:
        """The owners of each block."""
        pipeline = redis.pipeline(transaction=False)
        for block, workers in owners.items():
            pipeline.set(_key(self.prefix, block), np.array(workers, "<u2").tobytes())
        pipeline.execute()

    async def all_blocks(self, chain: Sequence[int]) -> dict[int, int]:
        """How deep each worker holds this chain, by one command with all of its blocks."""
        replies = await self._redis.mget([_key(self.prefix, block) for block in chain])
        depths: dict[int, int] = {}
        for depth, data in enumerate(takewhile(lambda data: data is not None, replies), start=1):
            for worker in np.frombuffer(data, "<u2").tolist():
                depths[worker] = depth
        return depths

    async def bisect(self, chain: Sequence[int]) -> dict[int, int]:
        """The workers that hold most of this chain, and how much, by a bisection in the server."""
        hashes = np.array(chain, "<u8").tobytes()
        depth, owners = await self._bisect(keys=[self.prefix], args=[hashes])
        return dict.fromkeys(np.frombuffer(owners, "<u2").tolist(), depth)
