"""Workers from a file that may change: a YAML list, as in the agent's configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from picker.agent.config import WorkerConfig, check_names
from picker.config_files import ConfigError, load

_log = structlog.get_logger()
LOOK_EVERY_S = 1.0


async def watch(path: Path, look_every_s: float = LOOK_EVERY_S) -> AsyncIterator[list[WorkerConfig]]:
    """The list, and the list again whenever it has changed. What cannot be read changes nothing, and is logged once."""
    seen: object = None
    while True:
        # Kubernetes and editors replace a file: another one may have the same time.
        stamp = await asyncio.to_thread(_stamp, path)
        if stamp != seen:
            seen = stamp
            try:
                workers = await asyncio.to_thread(load, path, list[WorkerConfig])
                check_names(workers)
            except ConfigError as error:
                _log.error("workers_file_unusable", reason=str(error), consequence="the workers stay as they are")
            else:
                yield workers
        await asyncio.sleep(look_every_s)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
