"""Degraded modes of a picker's own process: ports that are taken, descriptors that are used up."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import httpx
import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from picker.config import Config
from picker.config_source import ConfigSource
from picker.debug.settings import Debug
from picker.insight import Asks
from picker.server import Server
from picker.simulation.stack import Plan, Stack
from tests.integration.traffic import Conversation, until


async def test_a_debug_port_that_is_taken_stops_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        server = Server(Config(debug=Debug(listen=address, page=address)), ConfigSource())
        asks = Asks(server._picker, server._degraded, lambda: 0, server._picker.admitting.by_class)
        with capture_logs() as logs:
            async with contextlib.AsyncExitStack() as exits:
                await server._insight.open(exits, asks)
    found = [(line["event"], line["setting"], line["address"]) for line in logs]
    assert found == [("not_listening", "debug.listen", address), ("not_listening", "debug.page", address)]
    server._picker.close()


@pytest.mark.envoy
async def test_without_descriptors_what_is_open_goes_on_and_the_rest_comes_back() -> None:
    async with Stack(Plan(workers=2, worker=("--speed", "20"))) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
            conversation = Conversation("with few descriptors")
            assert (await conversation.turn(client)).status_code == 200
            pid = stack.picker.pid
            before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # Fewer than are open: not one more can be had, whatever is closed.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
            assert len(list((Path("/proc") / str(pid) / "fd").iterdir())) > 8
            redis = Redis.from_url(stack.valkey.url)
            await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await redis.aclose()
            for _ in range(5):
                assert (await conversation.turn(client)).status_code == 200
            assert len(set(conversation.workers)) == 1
            with pytest.raises(httpx.HTTPError):
                await stack.metrics()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            await until(lambda: stack.metric_is("picker_redis_connected", 1), within_s=60)
            assert (await conversation.turn(client)).status_code == 200
            assert stack.picker.is_running
