"""`picker serve --processes N`: N pickers, one port each, started again when one dies.

Envoy opens one connection for each of its threads to each endpoint, so processes that share a port are not spread;
N endpoints are. Process number i listens on each configured port plus i.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
import yaml

from picker.config import Config
from picker.config_source import ConfigSource
from picker.reload import Reload

log = structlog.get_logger()

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_SETTLED_AFTER_S = 10.0
_CANNOT_START = 2
"""What `picker serve` exits with when a setting makes no sense or a port is taken: to try again would not help."""


def config_of(config: Config, number: int) -> Config:
    """The configuration of process `number`: the same, with its ports and files counted up."""
    return msgspec.structs.replace(
        config,
        listen=_plus(config.listen, number),
        metrics=_plus(config.metrics, number),
        health=_plus_any(config.health, number),
        debug=msgspec.structs.replace(
            config.debug, listen=_plus_any(config.debug.listen, number), page=_plus_any(config.debug.page, number)
        ),
        events=msgspec.structs.replace(config.events, file=_numbered(config.events.file, number)),
    )


async def supervise(config: Config, processes: int, source: ConfigSource) -> None:
    """Runs them until SIGTERM or SIGINT, which is handed on; returns when all have drained.

    `source` is where `config` came from: when it changes, each process is given its own part of it.
    """
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    with tempfile.TemporaryDirectory(prefix="picker-") as folder:
        paths = [Path(folder) / f"{number}.yaml" for number in range(processes)]
        _write(config, paths)
        async with asyncio.TaskGroup() as tasks:
            reload = Reload(source, config, lambda changed: _write(changed, paths))
            watching = tasks.create_task(reload.run(), name="reload")
            async with asyncio.TaskGroup() as running:
                for number, path in enumerate(paths):
                    running.create_task(_keep_running(path, number, stopping), name=f"picker-{number}")
            watching.cancel()


def _write(config: Config, paths: Sequence[Path]) -> None:
    """Each process's configuration into its file, whole at once: the process may be reading it."""
    for number, path in enumerate(paths):
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(yaml.safe_dump(msgspec.to_builtins(config_of(config, number))))
        new.replace(path)


async def _keep_running(config: Path, number: int, stopping: asyncio.Event) -> None:
    pause_s = _FIRST_PAUSE_S
    while not stopping.is_set():
        started = time.monotonic()
        code = await _run_once(config, stopping)
        if stopping.is_set():
            return
        if code == _CANNOT_START:
            log.error("picker_process_cannot_start", process=number)
            stopping.set()
            return
        pause_s = (
            _FIRST_PAUSE_S if time.monotonic() - started > _SETTLED_AFTER_S else min(2 * pause_s, _LONGEST_PAUSE_S)
        )
        log.warning("picker_process_ended", process=number, exit_code=code, started_again_in_s=pause_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), pause_s)


async def _run_once(config: Path, stopping: asyncio.Event) -> int:
    command = (sys.executable, "-m", "picker", "serve", "--config", str(config))
    process = await asyncio.create_subprocess_exec(*command)
    async with asyncio.TaskGroup() as tasks:
        hand_on = tasks.create_task(_stop(process, stopping), name="stop")
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            raise
        hand_on.cancel()
    return code


async def _stop(process: asyncio.subprocess.Process, stopping: asyncio.Event) -> None:
    await stopping.wait()
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)


def _numbered(file: str | None, number: int) -> str | None:
    """decisions.jsonl, decisions-1.jsonl, ...: two processes must not write to one file."""
    if file in (None, "-") or number == 0:
        return file
    path = Path(str(file))
    return str(path.with_name(f"{path.stem}-{number}{path.suffix}"))


def _plus_any(address: str | None, number: int) -> str | None:
    return _plus(address, number) if address else None


def _plus(address: str, number: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number}"
