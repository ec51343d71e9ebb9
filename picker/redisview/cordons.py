"""Which workers operators have cordoned: one HASH for all pickers of a pool. It stays until they are uncordoned."""

from __future__ import annotations

from redis.asyncio import Redis

from picker.redisview.connection import DEADLINE_S, bounded
from picker.redisview.keys import Keys

_MOST = 10_000
_MOST_NOTE_CHARS = 200


class CordonRecords:
    """Raises `connection.FAILURES` where Redis does not answer."""

    def __init__(self, client: Redis, keys: Keys):
        self._client = client
        self._key = keys.cordons

    async def read(self) -> dict[str, str]:
        """The cordoned workers, by name, each with the note that was left."""
        async with bounded(DEADLINE_S):
            if await self._client.hlen(self._key) > _MOST:
                return {}
            found = await self._client.hgetall(self._key)
        return {_text(worker): _text(note) for worker, note in found.items()}

    async def put(self, worker: str, note: str) -> None:
        """Cordons a worker."""
        async with bounded(DEADLINE_S):
            await self._client.hset(self._key, worker, note[:_MOST_NOTE_CHARS])

    async def remove(self, worker: str) -> None:
        """Uncordons a worker."""
        async with bounded(DEADLINE_S):
            await self._client.hdel(self._key, worker)


def _text(data: bytes | str) -> str:
    return data.decode("utf-8", "replace") if isinstance(data, bytes) else data
