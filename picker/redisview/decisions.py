"""Decisions as a Redis stream, for those who want those of all pickers in one place."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from picker.redisview.connection import DEADLINE_S, FAILURES, bounded
from picker.redisview.keys import Keys


class DecisionStream:
    """Keeps about the last `length` entries, each one line of JSON in the field `decision`."""

    def __init__(self, client: Redis, keys: Keys, length: int):
        self._client = client
        self._keys = keys
        self._length = length

    async def append(self, lines: Sequence[bytes]) -> None:
        """Raises OSError where Redis does not take them."""
        if not lines:
            return
        pipeline = self._client.pipeline(transaction=False)
        for line in lines:
            pipeline.xadd(self._keys.decisions, {"decision": line.rstrip()}, maxlen=self._length, approximate=True)
        try:
            async with bounded(DEADLINE_S):
                await pipeline.execute()
        except FAILURES as error:
            raise OSError(type(error).__name__) from None
