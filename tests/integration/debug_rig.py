"""A picker over a fleet of its own in this process, with a debug port that clients can call."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc

from picker.config import Config, redacted
from picker.cordons import Cordons
from picker.debug.fleet import State
from picker.debug.port import DebugPort
from picker.debug.service import DebugService, Parts
from picker.debug.settings import Debug
from picker.debug.v1 import debug_pb2_grpc
from picker.events.recorder import Recorder
from picker.extproc.actions import Pick
from picker.fleet.view import View
from picker.observing import Observer
from picker.picking import Picker
from picker.prompts.reader import PromptReader
from picker.simulation.process import free_ports
from picker.telemetry.metrics import Metrics


class Records:
    """Cordons that Redis holds, while it is there."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self.is_gone = False

    async def read(self) -> dict[str, str]:
        self._fail()
        return dict(self.found)

    async def put(self, worker: str, note: str) -> None:
        self._fail()
        self.found[worker] = note

    async def remove(self, worker: str) -> None:
        self._fail()
        self.found.pop(worker, None)

    def _fail(self) -> None:
        if self.is_gone:
            raise OSError("gone")


@dataclass
class Rig:
    """`address` is that of the debug port, `stub` a client of it."""

    address: str
    stub: Any
    view: View
    picker: Picker
    recorder: Recorder
    cordons: Cordons
    records: Records
    levels: list[str]
    service: DebugService

    async def pick(self, request_id: str = "r1", prompt: str = "hello " * 300, model: str = "llama") -> Any:
        body = json.dumps({"model": model, "prompt": prompt}).encode()
        headers = {":method": "POST", ":path": "/v1/completions", "x-request-id": request_id}
        return await self.picker.pick(Pick(headers, body))


@contextlib.asynccontextmanager
async def debug_rig(
    view: View, config: Config | None = None, debug: dict[str, Any] | None = None, token: str = ""
) -> AsyncIterator[Rig]:
    config = config or Config()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    recorder = Recorder(config.events, "p")
    picker = Picker(config, view, PromptReader({}), Metrics(), lambda: False, Observer(recorder, view))
    records = Records()
    cordons = Cordons(records, view)  # type: ignore[arg-type]
    levels: list[str] = []
    metrics = Metrics()
    state = State(
        "pool",
        "p",
        metrics.verdicts,
        lambda: {"redis": True, "prediction": False},
        lambda: 0,
        lambda: {"batch": (3, 1.5)},
    )
    parts = Parts(view, recorder, picker, cordons, state, lambda: redacted(config), levels.append)
    service = DebugService(parts)
    port = DebugPort(Debug(listen=address, **(debug or {})), service, None)
    await port.start()
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            stub = debug_pb2_grpc.DebugStub(channel)  # type: ignore[no-untyped-call]
            yield Rig(address, stub, view, picker, recorder, cordons, records, levels, service)
    finally:
        await port.stop()
        picker.close()


async def first(stream: Any, count: int) -> list[Any]:
    """So many messages of a stream, which is then ended."""
    found = []
    async with asyncio.timeout(20):
        async for message in stream:
            found.append(message)
            if len(found) == count:
                stream.cancel()
                break
    return found
