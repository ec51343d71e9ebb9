"""Between an engine's KV events and whoever subscribes: what PUB and SUB lose, and what networks reorder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import zmq
import zmq.asyncio


@dataclass
class KvRelay:
    """`lost` is the share of batches that never arrive, `late` that of those which the next one overtakes."""

    lost: float = 0.0
    late: float = 0.0
    rng: Random = field(default_factory=lambda: Random(3))
    _held: list[bytes] | None = None

    def pass_on(self, message: list[bytes]) -> list[list[bytes]]:
        """What comes out now that this has come in."""
        if self.rng.random() < self.lost:
            return []
        held, self._held = self._held, None
        if held is None and self.rng.random() < self.late:
            self._held = message
            return []
        return [message] if held is None else [message, held]

    async def run(self, source: zmq.asyncio.Socket, sink: zmq.Socket[Any]) -> None:
        while True:
            for message in self.pass_on(await source.recv_multipart()):
                sink.send_multipart(message)


@contextlib.asynccontextmanager
async def kv_relay(source: str, sink: str) -> AsyncIterator[KvRelay]:
    """From the publisher at `source` to those who subscribe at `sink`."""
    context, one = zmq.asyncio.Context(), KvRelay()
    subscriber, publisher = context.socket(zmq.SUB), zmq.Socket(context, zmq.PUB)
    subscriber.subscribe(b"")
    subscriber.connect(source)
    publisher.bind(sink)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(one.run(subscriber, publisher))
        try:
            yield one
        finally:
            running.cancel()
            publisher.close(linger=0)
            subscriber.close(linger=0)
            context.term()
