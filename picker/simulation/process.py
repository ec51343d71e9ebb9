"""Child processes of the demo and of tests: started with a log file, watched until ready, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from picker.simulation.tether import tethered


class DidNotStart(RuntimeError):
    """A process that ended or stayed unready. The message says which, how, and shows the end of its log."""


class Process:
    """One child process in a session of its own; stopping it stops what it started, and it ends when we do."""

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None):
        self.name = name
        self.log = log
        self._command = command
        self._env = dict(os.environ) | dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns at once. Raises DidNotStart if there is no such program."""
        if shutil.which(self._command[0], path=self._env.get("PATH")) is None:
            raise DidNotStart(f"{self.name}: {self._command[0]} is not installed")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(self._command), stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._env,
                start_new_session=True,
            )  # fmt: skip

    async def wait_until(self, is_ready: Callable[[], Awaitable[bool]], within_s: float = 60.0) -> None:
        """Polls until it is ready. Raises DidNotStart when it ends first, or takes too long."""
        deadline = time.monotonic() + within_s
        while not await is_ready():
            if not self.is_running:
                raise DidNotStart(f"{self.name} ended while starting:\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise DidNotStart(f"{self.name} was not ready within {within_s:.0f} s:\n{self._log_tail()}")
            await asyncio.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children, if it still runs."""
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    async def stop(self, grace_s: float = 5.0) -> None:
        """SIGTERM, then SIGKILL if that takes too long."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.is_running and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self.kill()

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join(f"    {line}" for line in lines) or "    (nothing logged)"


def free_ports(count: int) -> list[int]:
    """TCP ports on loopback that nobody listens on at the moment, all different.

    From below the range that the kernel takes for outgoing connections: a port from within it may be an outgoing
    connection's by the time that the server starts which it was meant for.
    """
    ports: list[int] = []
    for port in random.sample(range(_FIRST_PORT, _EPHEMERAL_FROM), _EPHEMERAL_FROM - _FIRST_PORT):
        if len(ports) == count:
            return ports
        if _is_free(port):
            ports.append(port)
    raise DidNotStart(f"there are no {count} free ports between {_FIRST_PORT} and {_EPHEMERAL_FROM}")


# Linux begins at 32768, others later.
_FIRST_PORT, _EPHEMERAL_FROM = 10_000, 32_000


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
