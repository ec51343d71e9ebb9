"""What an orchestration platform and the pickers of a pool tell one another: a HASH of orders and a HASH of state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from picker.redisview.connection import DEADLINE_S, bounded
from picker.redisview.keys import Keys


class BadOrders(ValueError):
    """The key holds what cannot be orders. The message says why."""


class PlatformRecords:
    """Raises `connection.FAILURES` where Redis does not answer."""

    def __init__(self, client: Redis, keys: Keys):
        self._client = client
        self._orders, self._state = keys.platform, keys.state

    async def orders(self, sections: Sequence[str], most_bytes: int) -> dict[str, bytes]:
        """The sections that are there. Raises BadOrders where there is more than that."""
        fields, *sizes = await self._ask(("HLEN",), *(("HSTRLEN", section) for section in sections))
        if sum(sizes) > most_bytes:
            raise BadOrders(f"{self._orders}: {sum(sizes)} bytes, more than platform.max_bytes, which is {most_bytes}")
        [values] = await self._ask(("HMGET", *sections))
        found = {name: value for name, value in zip(sections, values, strict=True) if value is not None}
        if fields > len(found):
            raise BadOrders(f"{self._orders}: a field is none of {', '.join(sections)}")
        return found

    async def _ask(self, *commands: tuple[str, ...]) -> list[Any]:
        """The replies to commands about the orders' key."""
        pipeline = self._client.pipeline(transaction=False)
        for name, *arguments in commands:
            pipeline.execute_command(name, self._orders, *arguments)
        async with bounded(DEADLINE_S):
            replies = await pipeline.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
                raise BadOrders(f"{self._orders} is no HASH")
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def tell(self, state: Mapping[str, bytes], kept_s: float) -> None:
        """Writes the sections of the state, which are forgotten after so long without another."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hset(self._state, mapping=dict(state))  # type: ignore[arg-type]
        pipeline.expire(self._state, max(1, round(kept_s)))
        async with bounded(DEADLINE_S):
            await pipeline.execute()
