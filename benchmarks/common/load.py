"""Open-loop HTTP/1.1 load: requests go out when they are due, whether or not earlier ones have been answered.

Latency counts from the time at which a request was due, so that a server that stalls is charged for the requests that
it made late (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

_HEAD_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request. `status` is 0 where there was no answer; `latency_s` counts from when the request was due."""

    status: int
    latency_s: float


def precise_loop() -> asyncio.AbstractEventLoop:
    """An event loop for the client: its timers hold to about 0.1 ms, where epoll's round up to the next millisecond."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def poisson(rate: float, seconds: float, rng: Random) -> list[float]:
    """Arrival times of a Poisson process of `rate` a second, from 0 to `seconds`."""

    def times() -> Iterator[float]:
        at = rng.expovariate(rate)
        while at < seconds:
            yield at
            at += rng.expovariate(rate)

    return list(times())


def chat(body: bytes) -> bytes:
    """A whole HTTP request that posts this body to the chat API."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: benchmark\r\ncontent-type: application/json\r\n"
    return b"%scontent-length: %d\r\n\r\n%s" % (head, len(body), body)


class Client:
    """A pool of keep-alive connections. A request waits for a free one; `timeout_s` bounds its exchange after that."""

    def __init__(self, address: str, connections: int = 32, timeout_s: float = 10.0):
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._timeout_s = timeout_s
        self._idle: asyncio.Queue[_Connection | None] = asyncio.Queue()
        for _ in range(connections):
            self._idle.put_nowait(None)

    async def run(self, arrivals: Sequence[float], request: Callable[[int], bytes]) -> list[Exchange]:
        """Sends `request(i)` at `arrivals[i]` seconds from now; the exchanges in this order."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number, at in enumerate(arrivals):
                data = request(number)
                await asyncio.sleep(started + at - loop.time())
                tasks.append(group.create_task(self._exchange(data, started + at)))
        return [task.result() for task in tasks]

    def close(self) -> None:
        """Closes the connections; no request may be under way."""
        while not self._idle.empty():
            connection = self._idle.get_nowait()
            if connection is not None:
                connection.close()

    async def _exchange(self, data: bytes, due: float) -> Exchange:
        status = 0
        connection = await self._idle.get()
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._usable(connection)
                status = await connection.exchange(data)
        except OSError:  # a connection refused or lost, or the timeout
            if connection is not None:
                connection.close()
        finally:
            self._idle.put_nowait(connection)
        return Exchange(status, asyncio.get_running_loop().time() - due)

    async def _usable(self, connection: _Connection | None) -> _Connection:
        if connection is not None and connection.is_open:
            return connection
        _, fresh = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return fresh


class _Connection(asyncio.Protocol):
    """One exchange at a time, of answers that have a content-length (upstream's and Envoy's own have)."""

    def __init__(self) -> None:
        self.is_open = False
        self._received = bytearray()
        self._answer: asyncio.Future[int] | None = None

    async def exchange(self, data: bytes) -> int:
        """The status. Raises ConnectionError."""
        self._received.clear()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return await self._answer

    def close(self) -> None:
        self.is_open = False
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by their methods, not by inheritance.
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        status = whole_answer(self._received)
        if status is not None and self._answer is not None and not self._answer.done():
            self._answer.set_result(status)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("connection lost before the answer was whole"))


def whole_answer(received: bytearray) -> int | None:
    """The status once the answer is complete."""
    head_end = received.find(_HEAD_END)
    if head_end < 0:
        return None
    head = bytes(received[:head_end]).lower()
    _, found, rest = head.partition(_LENGTH)
    length = int(rest.partition(b"\r\n")[0]) if found else 0
    return int(head[9:12]) if len(received) >= head_end + len(_HEAD_END) + length else None
