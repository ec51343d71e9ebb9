"""The processes: those of `benchmarks.extproc`, and the routers beside them, before the same upstreams."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.cpu import cpu_s
from benchmarks.common.fleet import Activity
from benchmarks.extproc import rig as extproc
from benchmarks.peers.fronts import PICKERS, Router
from picker.simulation.process import Process, free_ports

_HOST = "127.0.0.1"
_START_S = 60.0


async def _nobody() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Front:
    """One that takes requests at `address`. `processes`: all that work for it, the upstream too, by what they are.

    `placed`: requests that its picker has placed so far; None where there is none.
    """

    label: str
    address: str
    processes: Mapping[str, Process]
    placed: Callable[[], Awaitable[int | None]] = _nobody

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process so far."""
        return {name: cpu_s(process.pid) for name, process in self.processes.items()}


@asynccontextmanager
async def running(routers: Sequence[Router]) -> AsyncIterator[list[Front]]:
    """Starts everything, waits until each front answers, and ends it. Raises DidNotStart."""
    async with extproc.running(tuple(PICKERS.values()), Activity()) as rig, AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-peers-")))
        fronts = [_behind_envoy(rig, label, site) for label, site in zip(PICKERS, rig.sites, strict=True)]
        logs = [folder / f"{router.label}.log" for router in routers]
        yield fronts + [await _start(stack, router, rig, log) for router, log in zip(routers, logs, strict=True)]


def _behind_envoy(rig: extproc.Rig, label: str, site: extproc.Site) -> Front:
    picker = {"picker": site.responder} if site.responder else {}
    return Front(label, site.listen, {"envoy": rig.envoy, **picker, "upstream": rig.upstream}, site.placed)


async def _start(stack: AsyncExitStack, router: Router, rig: extproc.Rig, log: Path) -> Front:
    port, metrics_port = map(str, free_ports(2))
    process = Process(router.label, router.command(_HOST, port, rig.endpoints, metrics_port), log)
    process.start()
    stack.push_async_callback(process.stop)
    address = f"{_HOST}:{port}"
    await process.wait_until(lambda: extproc.answers(address), _START_S)
    return Front(router.label, address, {"router": process, "upstream": rig.upstream})
