"""Closed-loop HTTP/1.1 load, from a process of its own: a connection sends its next request once it has an answer.

python -m benchmarks.common.closed, with a Task as JSON on its input; prints a Told as JSON.

It is made to cost little beside what it measures: no task, no future and no timer for a request, and one thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import cast

import msgspec
import uvloop

from benchmarks.common.conversations import Conversations
from benchmarks.common.load import chat, whole_answer

_END_S = 10.0


class Task(msgspec.Struct, frozen=True):
    """What to send where. `first`: the number of the first conversation."""

    address: str
    model: str
    body_bytes: int
    connections: int
    seconds: float
    first: int


class Told(msgspec.Struct, frozen=True):
    """What came of it. `latencies_s` of all requests, `cpu_s` of the process that sent them."""

    requests: int
    failures: int
    seconds: float
    cpu_s: float
    latencies_s: list[float]


class Load:
    """What the connections share."""

    def __init__(self, request: Callable[[int], bytes], first: int):
        self._request = request
        self._number = first
        self.is_over = False
        self.latencies_s: list[float] = []
        self.failures = 0

    def next(self) -> bytes:
        """Another request."""
        self._number += 1
        return self._request(self._number)

    def note(self, status: int, latency_s: float) -> None:
        """A request has been answered; 0 is no answer."""
        self.latencies_s.append(latency_s)
        self.failures += status != 200


class _Connection(asyncio.Protocol):
    def __init__(self, load: Load):
        self._load = load
        self._received = bytearray()
        self.is_gone = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's by their methods, not by inheritance.
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        status = whole_answer(self._received)
        if status is None:
            return
        self._received.clear()
        self._load.note(status, time.perf_counter() - self._sent_at)
        if self._load.is_over:
            self._transport.close()
        else:
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self._load.is_over:
            self._load.note(0, time.perf_counter() - self._sent_at)
        self.is_gone.set_result(None)

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._load.next())


async def run(task: Task) -> Told:
    """Sends for as long as the task says. A connection that is lost counts as a failure, and is not opened again."""
    conversations = Conversations(task.body_bytes, task.model)
    load = Load(lambda number: chat(conversations.body(number)), task.first)
    host, _, port = task.address.rpartition(":")
    loop = asyncio.get_running_loop()
    started, cpu = time.perf_counter(), time.process_time()
    open_ = [await loop.create_connection(lambda: _Connection(load), host, int(port)) for _ in range(task.connections)]
    await asyncio.sleep(task.seconds)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    told = Told(len(load.latencies_s), load.failures, seconds, cpu, load.latencies_s.copy())
    load.is_over = True
    await asyncio.wait([connection.is_gone for _, connection in open_], timeout=_END_S)
    return told


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(run(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))))
    )
