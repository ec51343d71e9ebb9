"""The EnvoyPatchPolicy, applied to a listener and a cluster as Envoy Gateway makes them, and run by a real Envoy."""

from __future__ import annotations

import asyncio
import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from picker import envoy_config
from picker.simulation.process import Process, free_ports
from picker.simulation.stack import ENVOY_FLAGS, envoy_binary
from tests.deploy.render import ROOT
from tests.integration.traffic import until

pytestmark = pytest.mark.envoy
POLICY = yaml.safe_load((ROOT / "deploy" / "gateways" / "envoy-gateway-patch.yaml").read_text())
CONNECTION_MANAGER = (
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
)
ROUTER = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def bootstrap(port: int, admin: int, workers: list[int]) -> dict[str, Any]:
    """One listener and one cluster by the names that the policy patches; the pick is a header that a client sends."""
    route = {"match": {"prefix": "/"}, "route": {"cluster": "httproute/default/inference/rule/0"}}
    manager = {
        "@type": CONNECTION_MANAGER,
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": ROUTER}}],
    }
    listener = {
        "name": "default/inference/http",
        "address": address(port),
        "default_filter_chain": {"filters": [{"name": "http", "typed_config": manager}]},
    }
    cluster = {
        "name": "httproute/default/inference/rule/0",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "workers",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(each)}} for each in workers]}],
        },
    }
    return {
        "admin": {"address": address(admin)},
        "static_resources": {"listeners": [listener], "clusters": [cluster]},
    }


def address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def patched(config: dict[str, Any], *, only: str = "") -> dict[str, Any]:
    config = copy.deepcopy(config)
    for patch in POLICY["spec"]["jsonPatches"]:
        kind = "clusters" if patch["type"].endswith(".Cluster") else "listeners"
        if only in ("", kind):
            [target] = [each for each in config["static_resources"][kind] if each["name"] == patch["name"]]
            *path, last = patch["operation"]["path"].strip("/").split("/")
            for step in path:
                target = target[int(step)] if step.isdecimal() else target[step]
            target[last] = patch["operation"]["value"]
    return config


async def serve(port: int) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        body = f"{port} {'forged' if 'x-gateway-destination-endpoint:' in head else 'clean'}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)


@pytest.mark.parametrize(("only", "expected"), [("clusters", "honoured"), ("", "stripped")])
async def test_picks_are_honoured_and_forged_ones_stripped(only: str, expected: str, tmp_path: Path) -> None:
    port, admin, *workers = free_ports(4)
    servers = [await serve(each) for each in workers]
    path = tmp_path / "envoy.json"
    path.write_text(json.dumps(patched(bootstrap(port, admin, workers), only=only)))
    process = Process("envoy", [envoy_binary(), *ENVOY_FLAGS, "-c", str(path)], tmp_path / "log")
    process.start()
    try:
        async with httpx.AsyncClient() as client:

            async def answered() -> bool:
                try:
                    return (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(answered)
            wanted = {"x-gateway-destination-endpoint": f"127.0.0.1:{workers[1]}"}
            answers = {(await client.get(f"http://127.0.0.1:{port}/", headers=wanted)).text for _ in range(20)}
        if expected == "honoured":
            assert answers == {f"{workers[1]} forged"}
        else:
            assert answers == {f"{workers[0]} clean", f"{workers[1]} clean"}
    finally:
        await process.stop()
        for server in servers:
            server.close()


@pytest.mark.parametrize("name", envoy_config.NAMES)
def test_every_shipped_configuration_is_valid_to_the_pickers_name_in_a_cluster(name: str, tmp_path: Path) -> None:
    """As a ConfigMap would hold it: reached by the Service's name."""
    path = tmp_path / "envoy.yaml"
    path.write_text(
        envoy_config.text(name, listen="0.0.0.0:10000", admin="127.0.0.1:9901", picker="picker.picker:9002")
    )
    command = [envoy_binary(), "--mode", "validate", "-c", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-2000:]
