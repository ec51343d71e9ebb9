"""A TCP relay between a client and Redis that can be slow, or fall silent without closing, as networks do."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from picker.simulation.process import free_ports


class Relay:
    """`url` is where clients go. `delay_s`: of each piece; `late`: share of pieces that take `late_s`."""

    def __init__(self, target: str):
        self._target = urlsplit(target)
        [self.port] = free_ports(1)
        self.delay_s = 0.0
        self.late, self.late_s = 0.0, 1.0
        self.connections = 0
        self.open = 0
        self._rng = random.Random(5)
        self._dead: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def drop_silently(self) -> None:
        """What is open now passes nothing any more, and nobody is told; new connections work."""
        self._dead |= self._writers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:
            writer.close()
            return
        self.open += 1
        self._writers |= {writer, back}
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump(reader, back))
                tasks.create_task(self._pump(there, writer))
        finally:
            self.open -= 1
            self._writers -= {writer, back}
            for end in (writer, back):
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                late_s = self.late_s if self._rng.random() < self.late else 0.0
                if self.delay_s + late_s:
                    await asyncio.sleep(self.delay_s + late_s)
                if writer not in self._dead:
                    writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    one = Relay(target)
    server = await asyncio.start_server(one.serve, "127.0.0.1", one.port)
    try:
        yield one
    finally:
        server.close()
