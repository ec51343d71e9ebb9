"""Reading the configuration file again while running: when it changes, or on SIGHUP.

A file that cannot be used changes nothing. Of one that can, what may change at run time does; the rest waits for a
restart, and the log says so.
"""

from __future__ import annotations

import asyncio
import functools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import structlog

from picker.config import Config
from picker.config_checks import BadSetting
from picker.config_files import ConfigError
from picker.config_source import ConfigSource
from picker.settings.values import changes

log = structlog.get_logger()

LIVE = frozenset({
    "policy", "fallbacks", "rewrites", "profiles", "requirement_headers", "placement", "worker_model", "disaggregation",
    "admission.quotas", "admission.tenants", "drain_wait_s", "drain_s",
})  # fmt: skip
"""Settings that take effect at once; those within them too. The others shape what was built at the start."""

_LOOK_EVERY_S = 1.0
Apply = Callable[[Config], None]


def merged(running: Config, wanted: Config) -> Config:
    """The running configuration with the wanted one's live settings."""
    admission = msgspec.structs.replace(
        running.admission, **{path.partition(".")[2]: _at(wanted, path) for path in LIVE if "." in path}
    )
    live = {path: _at(wanted, path) for path in LIVE if "." not in path}
    return msgspec.structs.replace(running, admission=admission, **live)


def _at(config: Config, path: str) -> Any:
    return functools.reduce(getattr, path.split("."), config)


class Reload:
    """Watches one source. `apply` is handed each new configuration in which something differs that may change."""

    def __init__(self, source: ConfigSource, running: Config, apply: Apply, every_s: float = _LOOK_EVERY_S):
        self._source = source
        self._running = running
        self._apply = apply
        self._every_s = every_s
        self._seen = _stamp(source.path)
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._asked.set)
        while True:
            try:
                async with asyncio.timeout(self._every_s):
                    await self._asked.wait()
            except TimeoutError:
                pass
            stamp = _stamp(self._source.path)
            if self._asked.is_set() or stamp != self._seen:
                self._asked.clear()
                self._seen = stamp
                self.read()

    def read(self) -> None:
        """Reads the file once and does as it says, or nothing."""
        try:
            wanted = self._source.read()
        except (ConfigError, BadSetting) as error:
            log.error("config_reload_refused", error=str(error), consequence="nothing changed")
            return
        different = changes(self._running, wanted)
        live = [str(each) for each in different if _is_live(each.path)]
        waiting = [str(each) for each in different if not _is_live(each.path)]
        if live:
            self._running = merged(self._running, wanted)
            self._apply(self._running)
        if waiting:
            log.warning("config_reloaded", changed=live, needs_restart=waiting)
        else:
            log.info("config_reloaded", changed=live)


def _is_live(path: str) -> bool:
    return any(path == live or path.startswith(f"{live}.") for live in LIVE)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    """What differs when a file was written, or when a link leads to another one, as Kubernetes' volumes do it."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
