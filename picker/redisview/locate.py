"""Where the primary is: fixed, or asked of sentinels, or of the nodes of a cluster.

All keys of a pool stand in one slot of a cluster, so that at any time one server has them all, as with sentinels. It is
asked for again from time to time, since a primary that lost its office may not know it, and whenever an answer says
that it is another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

_log = structlog.get_logger()
_ASK_S = 0.4
_RECHECK_S = 5.0
_LEAST_S = 0.2
_LEAVE_S = 2.0
_MOST_SEEDS = 64


class Address(NamedTuple):
    """Of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class NoPrimary(ConnectionError):
    """Nobody who was asked knows of a primary."""


class Locator(Protocol):
    """Says where to connect to."""

    async def find(self) -> Address:
        """Where a new connection should go. Raises NoPrimary."""

    async def is_elsewhere(self, address: Address) -> bool:
        """Whether a connection to this address should be left."""

    def suspect(self) -> bool:
        """A server has said that it is not the one; whether to leave it."""


class Fixed:
    """One address. A server that is a read-only replica is left from time to time: its name may have been switched."""

    def __init__(self, address: Address):
        self._address = address
        self._left_at = -_LEAVE_S

    async def find(self) -> Address:
        """The address."""
        return self._address

    async def is_elsewhere(self, address: Address) -> bool:
        """Never."""
        return False

    def suspect(self) -> bool:
        """Not again and again: it may be a replica on purpose."""
        is_due = time.monotonic() - self._left_at >= _LEAVE_S
        if is_due:
            self._left_at = time.monotonic()
        return is_due


class Answer(NamedTuple):
    """The primary, and others who can be asked next time."""

    primary: Address
    seeds: Sequence[Address] = ()


Ask = Callable[[Address], Awaitable[Answer | None]]


class Asking:
    """Asks the seeds in turn, the last one that knew first. One inquiry at a time serves all who wait for it."""

    def __init__(self, seeds: Sequence[Address], ask: Ask, whom: str):
        self._seeds = list(seeds)
        self._ask = ask
        self._whom = whom
        self._primary: Address | None = None
        self._asked_at = -_RECHECK_S
        self._is_suspect = False
        self._lock = asyncio.Lock()

    async def find(self) -> Address:
        """The primary; the last one known where nobody answers. Raises NoPrimary."""
        async with self._lock:
            waited_s = time.monotonic() - self._asked_at
            if self._primary is None or waited_s >= (_LEAST_S if self._is_suspect else _RECHECK_S):
                await self._inquire()
        assert self._primary is not None
        return self._primary

    async def is_elsewhere(self, address: Address) -> bool:
        """Whether the primary is another by now."""
        if time.monotonic() - self._asked_at >= _RECHECK_S:
            return await self.find() != address
        return self._primary != address

    def suspect(self) -> bool:
        """The next who looks for the primary asks anew."""
        self._is_suspect = True
        return True

    async def _inquire(self) -> None:
        reasons = []
        try:
            for seed in list(self._seeds):
                try:
                    async with asyncio.timeout(_ASK_S):
                        answer = await self._ask(seed)
                except (RedisError, OSError) as error:
                    reasons.append(f"{seed}: {error or type(error).__name__}")
                    continue
                if answer is not None:
                    self._take(seed, answer)
                    return
                reasons.append(f"{seed}: knows of none")
        finally:
            self._asked_at = time.monotonic()
        if self._primary is None:
            raise NoPrimary(f"no primary: {self._whom} asked: {'; '.join(reasons)}")

    def _take(self, seed: Address, answer: Answer) -> None:
        if self._primary not in (None, answer.primary):
            _log.warning("redis_primary_changed", old=str(self._primary), new=str(answer.primary))
        self._primary, self._is_suspect = answer.primary, False
        self._seeds = list(dict.fromkeys([seed, *answer.seeds, *self._seeds]))[:_MOST_SEEDS]


Client = Callable[[Address], Redis]
"""A client for one question. It is closed after it."""


def sentinels(seeds: Sequence[Address], client: Client, service: str) -> Asking:
    """Asks sentinels for the primary of this name."""

    async def ask(seed: Address) -> Answer | None:
        reply = await _asked(client(seed), "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        return Answer(Address(_text(reply[0]), int(reply[1]))) if reply else None

    return Asking(seeds, ask, f"sentinels of {service}")


def cluster(seeds: Sequence[Address], client: Client, slot: int) -> Asking:
    """Asks nodes of a cluster for the primary of this slot."""

    async def ask(seed: Address) -> Answer | None:
        ranges = await _asked(client(seed), "CLUSTER", "SLOTS")
        # A node may not know its own name: then it is what we called it.
        nodes = {
            (first, last): [Address(_text(host) or seed.host, int(port)) for host, port, *_ in members]
            for first, last, *members in ranges
        }
        everybody = [node for members in nodes.values() for node in members]
        found = next((members[0] for (first, last), members in nodes.items() if first <= slot <= last), None)
        return None if found is None else Answer(found, everybody)

    return Asking(seeds, ask, f"nodes of the cluster for slot {slot}")


async def _asked(client: Redis, *command: str) -> Any:
    try:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]
    finally:
        await client.aclose()


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")
