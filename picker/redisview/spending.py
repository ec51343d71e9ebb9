"""What all pickers have spent of their quotas: counters in one HASH, forgotten where nobody counts any more."""

from __future__ import annotations

from collections.abc import Mapping

from redis.asyncio import Redis

from picker.redisview.connection import DEADLINE_S, bounded
from picker.redisview.keys import Keys

KEPT_S = 600


class Spending:
    """Counters by name."""

    def __init__(self, client: Redis, keys: Keys):
        self._client = client
        self._key = keys.spending

    async def add(self, amounts: Mapping[str, float]) -> dict[str, float]:
        """Adds to the counters and gives their values; 0 only asks. Raises one of `connection.FAILURES`."""
        if not amounts:
            return {}
        pipeline = self._client.pipeline(transaction=False)
        for name, amount in amounts.items():
            pipeline.hincrbyfloat(self._key, name, amount)
        pipeline.expire(self._key, KEPT_S)
        async with bounded(DEADLINE_S):
            values = await pipeline.execute()
        return {name: float(value) for name, value in zip(amounts, values[:-1], strict=True)}
