"""The stack with what faults need: ways that can be cut, clocks that can jump, names that can be forgotten."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from picker.simulation.process import Process, free_ports
from picker.simulation.stack import MODEL, Plan, Stack
from picker.simulation.words import DEMO_TOKENIZER
from tests.chaos.kv_relay import KvRelay, kv_relay
from tests.integration.relay import Relay, relay

_HOST = "127.0.0.1"
_FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


@functools.cache
def _works(*command: str) -> bool:
    """Containers have a root that may do little."""
    is_there = all(shutil.which(program) for program in ("unshare", "ip"))
    return is_there and os.geteuid() == 0 and subprocess.run(command, capture_output=True).returncode == 0


class Clocks:
    """Wall clocks by part, with the help of libfaketime. Monotonic ones go on as they do."""

    def __init__(self, folder: Path):
        self._folder = folder
        self.parts = {"picker", "agent", "redis"}
        for part in self.parts:
            self.jump(part, "+0")

    @staticmethod
    def can() -> bool:
        return _FAKETIME is not None

    def jump(self, part: str, by: str) -> None:
        """`by`: seconds with a sign."""
        new = self._folder / "new"
        new.write_text(f"{by}\n")
        new.rename(self._folder / f"{part}.clock")

    def wrapped(self, part: str, command: Sequence[str]) -> list[str]:
        return [
            "env",
            f"LD_PRELOAD={_FAKETIME}",
            f"FAKETIME_TIMESTAMP_FILE={self._folder / part}.clock",
            "FAKETIME_CACHE_DURATION=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            *command,
        ]

    def script(self, part: str, binary: Path) -> Path:
        """A program that is `binary` with this clock; itself where it does not start with it, as Debian's Redis."""
        try:
            subprocess.run(self.wrapped(part, [str(binary), "--version"]), capture_output=True, timeout=5, check=True)
        except subprocess.SubprocessError:
            self.parts.discard(part)
            return binary
        script = self._folder / f"{part}.sh"
        script.write_text(f'#!/bin/sh\nexec {" ".join(self.wrapped(part, [str(binary)]))} "$@"\n')
        script.chmod(0o755)
        return script


class Names:
    """A table of hosts of our own, and no name server. In a mount namespace, for which one has to be root."""

    NAME = "redis.chaos"

    def __init__(self, folder: Path):
        self._hosts, self._resolver = folder / "hosts", folder / "resolv.conf"
        self._resolver.write_text(f"nameserver {_HOST}\noptions timeout:1 attempts:1\n")
        self.know()

    @staticmethod
    def can() -> bool:
        return _works("unshare", "--mount", "true")

    def know(self) -> None:
        self._hosts.write_text(f"{_HOST} localhost\n{_HOST} {self.NAME}\n")

    def forget(self) -> None:
        self._hosts.write_text(f"{_HOST} localhost\n")

    def wrapped(self, command: Sequence[str]) -> list[str]:
        mounts = 'mount --bind "$1" /etc/hosts && mount --bind "$2" /etc/resolv.conf && shift 2 && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mounts, "sh", str(self._hosts), str(self._resolver), *command]


class Machine:
    """An address of this machine's own that can be gone as one is that lost its power: nothing comes back, not even a
    refusal. For that one has to be root.
    """

    def __init__(self) -> None:
        self.address = "127." + ".".join(str(random.randint(1, 250)) for _ in range(3))

    @staticmethod
    def can() -> bool:
        return _works("unshare", "--net", "ip", "route", "add", "blackhole", "127.0.0.2/32", "table", "local")

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        route = ["blackhole", f"{self.address}/32", "table", "local"]
        subprocess.run(["ip", "route", "add", *route], check=True)
        try:
            yield
        finally:
            subprocess.run(["ip", "route", "del", *route], check=True)


class Harness(Stack):
    """`to_worker` is the way to the first worker, for Envoy and agent alike, `to_picker` that of Envoy to the first
    picker, `kv_events` that of the first worker's events to the agent. The first worker is on a `machine` of its own.
    """

    to_worker: Relay
    to_picker: Relay
    kv_events: KvRelay

    def __init__(self, plan: Plan, clocks: Clocks | None, names: Names | None):
        self._clocks, self._names = clocks, names
        self.machine = Machine()
        self._worker_port, self._picker_port, self._kv_port = free_ports(3)
        super().__init__(plan)
        self.tokenizer = self.folder / "tokenizer"
        shutil.copytree(DEMO_TOKENIZER, self.tokenizer)
        self._ways = AsyncExitStack()

    async def start(self) -> None:
        here = f"redis://{_HOST}"
        _, picker = self.picker_address.split(":")
        port, kv_port, _ = self._worker_ports[0]
        enter = self._ways.enter_async_context
        self.to_worker = await enter(relay(f"{here}:{self._worker_port}", port, self.machine.address))
        self.to_picker = await enter(relay(f"{here}:{self._picker_port}", int(picker)))
        self.kv_events = await enter(kv_relay(f"tcp://{_HOST}:{kv_port}", f"tcp://{_HOST}:{self._kv_port}"))
        await super().start()

    @property
    def endpoints(self) -> list[str]:
        _, *others = super().endpoints
        return [f"{self.machine.address}:{self._worker_ports[0][0]}", *others]

    async def __aenter__(self) -> Harness:
        await super().__aenter__()
        return self

    async def stop(self) -> None:
        await super().stop()
        await self._ways.aclose()

    def _worker(self, number: int) -> Process:
        worker = super()._worker(number)
        if number == 0:
            public = str(self._worker_ports[0][0])
            worker._command = [str(self._worker_port) if part == public else part for part in worker._command]
        return worker

    def _process(self, name: str, command: Sequence[str]) -> Process:
        part = name.partition("-")[0]
        if part in ("picker", "agent"):
            command = self._clocks.wrapped(part, command) if self._clocks else command
            command = self._names.wrapped(command) if self._names else command
        return super()._process(name, command)

    def _agent_config(self) -> dict[str, Any]:
        config = super()._agent_config()
        config["workers"][0] |= {
            "kv_events": f"tcp://{_HOST}:{self._kv_port}",
            "kv_replay": f"tcp://{_HOST}:{self._worker_ports[0][2]}",
        }
        return config

    def _picker_config(self, number: int) -> dict[str, Any]:
        own = {
            "tokenizers": {MODEL: str(self.tokenizer)},
            "events": {"file": str(self.folder / f"decisions-{number}.jsonl")},
        }
        return super()._picker_config(number) | own | ({"listen": f"{_HOST}:{self._picker_port}"} if not number else {})
