"""The processes: Valkey with a published fleet, upstreams, a responder for each contender, one Envoy before them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import yaml

from benchmarks.common.cpu import cpu_s
from benchmarks.common.fleet import Activity, published
from benchmarks.extproc.bootstrap import bootstrap
from benchmarks.extproc.contenders import MODEL, Contender, Responder
from picker.simulation.process import Process, free_ports
from picker.simulation.stack import envoy_binary
from picker.simulation.valkey import ValkeyServer

WORKERS = 4
_HOST = "127.0.0.1"
_HELLO = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}]}
_ENVOY_FLAGS = ("--disable-hot-restart", "--concurrency", "2", "--log-level", "error")


@dataclass(frozen=True, slots=True)
class Site:
    """A contender in place. `responder` is what answers Envoy, None where nothing does."""

    contender: Contender
    listen: str
    metrics: str
    responder: Process | None

    def cpu_s(self) -> float:
        """CPU seconds of the responder so far."""
        return cpu_s(self.responder.pid) if self.responder else 0.0

    async def placed(self) -> int | None:
        """Requests that the picker has placed in the way that is measured here; None where there is no picker."""
        if self.contender.responder is not Responder.PICKER:
            return None
        return int((await metrics_of(self.metrics)).get(f'picker_prefix_rung_total{{rung="{self.contender.rung}"}}', 0))


@dataclass(frozen=True, slots=True)
class Rig:
    """Everything, running."""

    sites: Sequence[Site]
    envoy: Process
    upstream: Process
    endpoints: Sequence[str]


@asynccontextmanager
async def running(contenders: Sequence[Contender], activity: Activity | None = None) -> AsyncIterator[Rig]:
    """Starts everything, waits until Envoy and all pickers know the workers, and ends it. Raises DidNotStart.

    `activity` is what the workers are published to do; nothing by default.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="picker-benchmark-")))
        valkey = await stack.enter_async_context(ValkeyServer())
        admin, *addresses = (f"{_HOST}:{port}" for port in free_ports(1 + WORKERS + 3 * len(contenders)))
        endpoints, addresses = addresses[:WORKERS], addresses[WORKERS:]
        ports = [endpoint.rpartition(":")[2] for endpoint in endpoints]
        upstream = Process("upstream", _module("benchmarks.common.upstream", *ports), folder / "upstream.log")
        await _start(stack, upstream)
        sites, listens = [], {}
        for number, contender in enumerate(contenders):
            listen, address, metrics = addresses[3 * number : 3 * number + 3]
            # A pool of its own for each: pickers of one pool would share their work, and tell it all the time.
            pool = f"contender-{number}"
            if contender.responder is Responder.PICKER:
                await stack.enter_async_context(published(valkey.url, pool, endpoints, MODEL, activity))
            settings = {"listen": address, "metrics": metrics, "redis": valkey.url, "pool": pool}
            command = _command(contender, folder / f"{number}.yaml", settings, endpoints)
            responder = Process(contender.label, command, folder / f"{number}.log") if command else None
            sites.append(Site(contender, listen, metrics, responder))
            listens[contender] = listen, address
            if responder:
                await _start(stack, responder)
        envoy = await _start_envoy(stack, folder, bootstrap(admin, listens, endpoints))
        for site in sites:
            await _wait_ready(site, admin, envoy, endpoints)
        yield Rig(sites, envoy, upstream, endpoints)


async def _start(stack: AsyncExitStack, process: Process) -> None:
    process.start()
    stack.push_async_callback(process.stop)


async def _start_envoy(stack: AsyncExitStack, folder: Path, config: Mapping[str, object]) -> Process:
    path = folder / "envoy.json"
    path.write_bytes(msgspec.json.encode(config))
    envoy = Process("envoy", [envoy_binary(), *_ENVOY_FLAGS, "-c", str(path)], folder / "envoy.log")
    await _start(stack, envoy)
    return envoy


def _command(contender: Contender, path: Path, settings: Mapping[str, str], endpoints: Sequence[str]) -> list[str]:
    match contender.responder:
        case Responder.NONE:
            return []
        case Responder.BARE:
            return _module("benchmarks.extproc.bare", settings["listen"], ",".join(endpoints))
        case Responder.PICKER:
            path.write_text(yaml.safe_dump({**settings, **contender.picker}))
            return _module("picker", "serve", "--config", str(path))


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


async def _wait_ready(site: Site, admin: str, envoy: Process, endpoints: Sequence[str]) -> None:
    if site.contender.responder is Responder.PICKER:
        assert site.responder is not None
        await site.responder.wait_until(lambda: _knows_workers(site.metrics, len(endpoints)))
    await envoy.wait_until(lambda: answers(site.listen))


async def _knows_workers(metrics: str, count: int) -> bool:
    try:
        return (await metrics_of(metrics)).get("picker_workers_ready") == count
    except httpx.HTTPError:
        return False


async def answers(listen: str) -> bool:
    """Whether a request comes through, which it does once Envoy knows the workers and has a connection to ext_proc."""
    async with httpx.AsyncClient() as client:
        try:
            answer = await client.post(f"http://{listen}/v1/chat/completions", json=_HELLO)
        except httpx.HTTPError:
            return False
    return answer.status_code == 200


async def metrics_of(address: str) -> dict[str, float]:
    """A picker's metrics by name and labels. Raises httpx.HTTPError."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{address}/metrics")).text
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in samples}
