"""Tokenizer files in Redis, by their digest: agents offer those of their workers, pickers take what they lack."""

from __future__ import annotations

import re
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from picker.redisview.connection import bounded
from picker.redisview.keys import Keys

TTL_S = 3600
"""Agents renew it every few minutes."""

DEADLINE_S = 15.0
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def is_digest(text: str) -> bool:
    """Whether it can be one: records come from outside, and digests stand in keys."""
    return bool(_DIGEST.fullmatch(text))


class TokenizerStore:
    """Of one pool. Each method raises one of `connection.FAILURES` where Redis does not do its part."""

    def __init__(self, client: Redis, keys: Keys):
        self._client = client
        self._keys = keys

    async def renew(self, digest: str) -> bool:
        """Keeps it for another hour; False where it is not there."""
        return bool(await self._ask("EXPIRE", self._keys.tokenizer(digest), TTL_S))

    async def put(self, digest: str, packed: bytes) -> None:
        """Offers it for an hour."""
        await self._ask("SET", self._keys.tokenizer(digest), packed, "EX", TTL_S)

    async def get(self, digest: str, most_bytes: int) -> bytes | None:
        """Its first bytes, up to one more than `most_bytes`; None where it is not there."""
        found: bytes | None = await self._ask("GETRANGE", self._keys.tokenizer(digest), 0, most_bytes)
        return found or None

    async def _ask(self, *command: str | int | bytes) -> Any:
        """The reply, None where the key holds something else that is not ours."""
        pipeline = self._client.pipeline(transaction=False)
        pipeline.execute_command(*command)
        async with bounded(DEADLINE_S):
            (reply,) = await pipeline.execute(raise_on_error=False)
        if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
            return None
        if isinstance(reply, Exception):
            raise reply
        return reply
