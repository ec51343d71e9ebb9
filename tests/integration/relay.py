"""A TCP relay that is what networks are: slow, narrow, stuck, gone without a word, or rude."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import struct
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from picker.simulation.process import free_ports


class Relay:
    """`url` is where clients go. `delay_s`: of each piece; `late`: share of pieces that take `late_s`.

    `bytes_per_s` is the width of each direction of each connection. While `flows` is clear nothing passes, and nothing
    is lost either.
    """

    def __init__(self, target: str, port: int | None = None, host: str = "127.0.0.1"):
        self._target = urlsplit(target)
        self.host = host
        self.port = port or free_ports(1)[0]
        self.delay_s = 0.0
        self.late, self.late_s = 0.0, 1.0
        self.bytes_per_s = math.inf
        self.flows = asyncio.Event()
        self.flows.set()
        self.connections = 0
        self.open = 0
        self._rng = random.Random(5)
        self._dead: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}"

    def drop_silently(self) -> None:
        """What is open now passes nothing any more, and nobody is told; new connections work."""
        self._dead |= self._writers

    def reset(self) -> None:
        """What is open now ends with RST, at both ends."""
        for writer in self._writers:
            if writer.transport.is_closing():
                continue
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()

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
                if pause_s := self.delay_s + late_s + len(data) / self.bytes_per_s:
                    await asyncio.sleep(pause_s)
                await self.flows.wait()
                if writer not in self._dead:
                    writer.write(data)
        writer.close()


@contextlib.asynccontextmanager
async def relay(target: str, port: int | None = None, host: str = "127.0.0.1") -> AsyncIterator[Relay]:
    one = Relay(target, port, host)
    server = await asyncio.start_server(one.serve, host, one.port)
    try:
        yield one
    finally:
        server.close()
