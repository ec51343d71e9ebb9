"""`picker serve` as a process: TLS, ports, supervision, what it says when it cannot start."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import httpx
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from picker.config import Tls
from picker.simulation.process import Process, free_ports
from picker.simulation.valkey import ValkeyServer
from picker.tls import _self_signed
from tests.integration.ext_proc import TRANSPORTS
from tests.integration.traffic import until

Check = Callable[[], Awaitable[bool]]


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def config(folder: Path, **settings: object) -> tuple[Path, list[int]]:
    ports = sorted(free_ports(9))[::3]  # not next to one another: processes count up from them
    path = folder / "picker.yaml"
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(("listen", "metrics", "health"), ports, strict=True)}
    path.write_text(yaml.safe_dump({**addresses, "redis": "redis://127.0.0.1:1", "drain_s": 1.0, **settings}))
    return path, ports


def serve(folder: Path, path: Path, *more: str) -> Process:
    process = Process("picker", [sys.executable, "-m", "picker", "serve", "--config", str(path), *more], folder / "log")
    process.start()
    return process


async def health(channel: grpc.aio.Channel, service: str = "liveness") -> int | None:
    try:
        reply = await health_pb2_grpc.HealthStub(channel).Check(
            health_pb2.HealthCheckRequest(service=service), timeout=2, wait_for_ready=False
        )
    except grpc.aio.AioRpcError:
        return None
    return reply.status


def is_alive(port: int, credentials: grpc.ChannelCredentials | None = None) -> Check:
    async def check() -> bool:
        address = f"localhost:{port}"
        channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address)
        async with channel:
            return await health(channel) == health_pb2.HealthCheckResponse.SERVING

    return check


def write_pair(folder: Path) -> tuple[bytes, bytes]:
    key, cert = _self_signed()
    (folder / "tls.key").write_bytes(key)
    (folder / "tls.crt").write_bytes(cert)
    return key, cert


async def test_tls_without_files_offers_http2_by_alpn(transport: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, transport=transport, tls={})
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[2]))
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("127.0.0.1", ports[0], ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.transport.abort()
        assert not await is_alive(ports[0])()
    finally:
        process.kill()


async def test_a_new_certificate_is_taken_without_a_restart(transport: str, tmp_path: Path) -> None:
    _, old = write_pair(tmp_path)
    path, ports = config(
        tmp_path, transport=transport, tls={"cert": str(tmp_path / "tls.crt"), "key": str(tmp_path / "tls.key")}
    )
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[0], grpc.ssl_channel_credentials(old)))
        _, new = write_pair(tmp_path)
        await until(is_alive(ports[0], grpc.ssl_channel_credentials(new)))
    finally:
        process.kill()


async def test_with_a_client_authority_only_its_clients_are_served(transport: str, tmp_path: Path) -> None:
    key, cert = write_pair(tmp_path)
    files = {
        "cert": str(tmp_path / "tls.crt"),
        "key": str(tmp_path / "tls.key"),
        "client_ca": str(tmp_path / "tls.crt"),
    }
    path, ports = config(tmp_path, transport=transport, tls=files)
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[0], grpc.ssl_channel_credentials(cert, key, cert)))
        assert not await is_alive(ports[0], grpc.ssl_channel_credentials(cert))()
    finally:
        process.kill()


async def test_a_picker_without_redis_is_alive_and_in_time_ready(transport: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, transport=transport)
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[0]))
        async with grpc.aio.insecure_channel(f"localhost:{ports[0]}") as channel:
            assert await health(channel, "readiness") == health_pb2.HealthCheckResponse.NOT_SERVING

            async def ready() -> bool:
                return await health(channel, "readiness") == health_pb2.HealthCheckResponse.SERVING

            await until(ready)
    finally:
        process.kill()


async def test_processes_have_ports_of_their_own_and_are_started_again(transport: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, transport=transport)
    process = serve(tmp_path, path, "--processes", "2")
    try:
        for port in (ports[0], ports[0] + 1):
            await process.wait_until(is_alive(port))
        victim = _children(process.pid)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: _is_replaced(process.pid, victim))
        for port in (ports[0], ports[0] + 1):
            await until(is_alive(port))
        children = _children(process.pid)
        await process.stop(grace_s=20)
        assert not any(map(_is_running, children))
    finally:
        process.kill()


async def test_processes_see_what_each_other_has_in_flight(transport: str, tmp_path: Path) -> None:
    async with ValkeyServer() as redis:
        path, ports = config(tmp_path, transport=transport, redis=redis.url)
        process = serve(tmp_path, path, "--processes", "2")
        try:
            for number in range(2):
                url = f"http://127.0.0.1:{ports[1] + number}/metrics"
                await process.wait_until(lambda url=url: _says(url, "picker_peers 1.0"))  # type: ignore[misc]
        finally:
            process.kill()


async def _says(url: str, line: str) -> bool:
    async with httpx.AsyncClient(trust_env=False) as client:
        try:
            return line in (await client.get(url)).text.splitlines()
        except httpx.HTTPError:
            return False


async def test_he_17_a_drain_says_so_first_and_goes_on_serving_for_a_while(transport: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, transport=transport, drain_wait_s=3.0)
    process = serve(tmp_path, path)
    try:
        async with grpc.aio.insecure_channel(f"localhost:{ports[0]}") as channel:

            async def says(status: int) -> bool:
                return await health(channel, "readiness") == status

            await process.wait_until(lambda: says(health_pb2.HealthCheckResponse.SERVING))
            process.signal(signal.SIGTERM)
            await until(lambda: says(health_pb2.HealthCheckResponse.NOT_SERVING))
            assert await health(channel) == health_pb2.HealthCheckResponse.SERVING, "liveness is another matter"
    finally:
        process.kill()


async def test_processes_that_cannot_start_are_not_tried_for_ever(transport: str, tmp_path: Path) -> None:
    path, _ = config(tmp_path, transport=transport, redis="http://x")
    process = serve(tmp_path, path, "--processes", "2")
    try:

        async def ended() -> bool:
            return not process.is_running

        await until(ended)
        assert "is not a Redis URL" in process.log.read_text()
    finally:
        process.kill()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_changed_file_is_read_again_and_a_wrong_one_is_not(processes: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path)
    settings = yaml.safe_load(path.read_text())
    process = serve(tmp_path, path, "--processes", processes)
    try:
        await process.wait_until(is_alive(ports[0]))
        path.write_text(yaml.safe_dump(settings | {"policy": "nope"}))
        await until(lambda: _has_said(process, "config_reload_refused"))
        path.write_text(yaml.safe_dump(settings | {"policy": "random", "pool": "other"}))
        process.signal(signal.SIGHUP)
        await until(lambda: _has_said(process, "policy: expected-delay -> random"))
        await until(lambda: _has_said(process, "pool: default -> other"))
        assert await is_alive(ports[0])()
    finally:
        await process.stop()


async def test_the_flags_of_the_reference_picker_are_understood(tmp_path: Path) -> None:
    ports = free_ports(3)
    flags = ("--pool-name", "p", "--zap-encoder", "json", "-v", "4", "--secure-serving=true")
    named = ("--grpc-port", f"{ports[0]}", "--grpc-health-port", f"{ports[1]}", "--metrics-port", f"{ports[2]}")
    process = Process("picker", [sys.executable, "-m", "picker", "serve", *flags, *named], tmp_path / "log")
    process.start()
    try:
        await process.wait_until(is_alive(ports[1]))
        assert not await is_alive(ports[0])(), "it is encrypted"
        assert '"pool":"p"' in process.log.read_text().replace(" ", "")
    finally:
        await process.stop()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"polcy": "random"}, "polcy is not a setting; did you mean policy"),
        ({"policy": "nope"}, "there is no policy 'nope'; there are: expected-delay"),
        ({"redis": "http://x"}, "is not a Redis URL"),
        ({"tokenizers": {"m": "/nowhere"}}, "/nowhere/tokenizer.json does not exist"),
        ({"tls": {"cert": "x"}}, "cert and key belong together"),
        ({"tls": {"cert": "/nowhere", "key": "/nowhere"}}, "/nowhere cannot be read"),
        ({"listen": "203.0.113.1:1"}, "listen: cannot listen on 203.0.113.1:1"),
        ({"health": "203.0.113.1:1"}, "health: cannot listen on 203.0.113.1:1"),
        ({"metrics": "203.0.113.1:1"}, "metrics: cannot listen on 203.0.113.1:1"),
        ({"kubernetes": {}}, "outside of a cluster set kubeconfig"),
        ({"kubernetes": {"group": "x"}}, "kubernetes.group: invalid enum value 'x'"),
        ({"metrics": "nowhere"}, "metrics: 'nowhere' is not host:port"),
        ({"listen": "127.0.0.1:99999"}, "listen: '127.0.0.1:99999' is not host:port"),
        ({"stale_after_s": -1}, "stale_after_s: expected `float` > 0"),
    ],
)
async def test_what_cannot_start_says_why(
    transport: str, tmp_path: Path, settings: dict[str, object], expected: str
) -> None:
    path, _ = config(tmp_path, transport=transport, **settings)
    process = serve(tmp_path, path)
    try:

        async def ended() -> bool:
            return not process.is_running

        await until(ended)
        assert expected in process.log.read_text()
        assert "Traceback" not in process.log.read_text()
    finally:
        process.kill()


def test_half_a_pair_is_no_tls() -> None:
    with pytest.raises(ValueError, match="belong together"):
        Tls(key="x")


async def _has_said(process: Process, text: str) -> bool:
    return text in process.log.read_text()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def _is_replaced(pid: int, victim: int) -> bool:
    children = _children(pid)
    return len(children) == 2 and victim not in children


async def test_the_health_command_says_what_the_service_says(transport: str, tmp_path: Path) -> None:
    path, ports = config(tmp_path, transport=transport)
    address = f"127.0.0.1:{ports[2]}"
    assert await _health_command(address, "liveness") == 1, "nobody there"
    process = serve(tmp_path, path)
    try:
        await process.wait_until(is_alive(ports[2]))
        assert await _health_command(address, "liveness") == 0
        assert await _health_command(address, "no-such-service") == 1
    finally:
        await process.stop()


async def _health_command(address: str, service: str) -> int | None:
    command = (sys.executable, "-m", "picker", "health", "--address", address, "--service", service)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    return await process.wait()
