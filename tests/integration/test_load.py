"""Many requests at once, and pickers that come and go under load."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from picker import envoy_config
from picker.simulation.process import free_ports
from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.ext_proc import TRANSPORTS
from tests.integration.relay import relay
from tests.integration.traffic import more, steady, until

pytestmark = pytest.mark.envoy
FAST = ("--speed", "200", "--profile", "8b")
CROWD = 1500
BODY = f'{{"model": "{MODEL}", "prompt": "Once upon a time", "max_tokens": 3}}'.encode()
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(BODY)
)


async def connect(stack: Stack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = stack.envoy_address.split(":")
    return await asyncio.open_connection(host, int(port))


async def one(stack: Stack, gate: asyncio.Event) -> str:
    reader, writer = await connect(stack)
    await gate.wait()
    writer.write(HEAD + BODY)
    status = (await reader.readline()).decode().split(" ")[1]
    await reader.read()
    writer.close()
    return status


async def is_forgotten(stack: Stack) -> bool:
    metrics = await stack.metrics()
    return not any(metrics[f"picker_{name}"] for name in ("streams", "inflight_requests", "held_body_bytes"))


@pytest.mark.parametrize(
    ("name", "transport"), [*((name, "http2") for name in envoy_config.NAMES), ("fail-open", "grpcio")]
)
async def test_1500_requests_at_once_are_all_answered(name: str, transport: str) -> None:
    async with Stack(Plan(workers=3, envoy=name, worker=FAST, picker={"transport": transport})) as stack:
        gate = asyncio.Event()
        async with asyncio.timeout(120):
            waiting = [asyncio.ensure_future(one(stack, gate)) for _ in range(CROWD)]
            await asyncio.sleep(1)
            gate.set()
            statuses = Counter(await asyncio.gather(*waiting))
        assert statuses == {"200": CROWD}
        await until(lambda: is_forgotten(stack))


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_1500_clients_that_leave_at_once_leave_nothing_behind(transport: str) -> None:
    slow = ("--speed", "0.2", "--profile", "8b")
    async with Stack(Plan(workers=3, worker=slow, picker={"transport": transport})) as stack:
        writers = [(await connect(stack))[1] for _ in range(CROWD)]
        for number, writer in enumerate(writers):
            # A third half way through their bodies, a third waiting, a third that never said more than hello.
            writer.write((HEAD + BODY[:10], HEAD + BODY, b"POST ")[number % 3])
        # Those that wait may have been answered by now; those half way through stay.
        await until(lambda: _has_streams(stack, CROWD // 3))
        for writer in writers:
            writer.transport.abort()
        await until(lambda: is_forgotten(stack))
        assert await one(stack, _open()) == "200"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_1500_clients_that_leave_at_once_fail_nobody_elses_request(transport: str) -> None:
    # Envoy drops its whole connection to the picker where more control frames wait than the default allows.
    plan = Plan(workers=3, worker=FAST, picker={"transport": transport})
    async with Stack(plan) as stack, steady(stack.url) as traffic:
        writers = [(await connect(stack))[1] for _ in range(CROWD)]
        for writer in writers:
            writer.write(HEAD + BODY[:10])
        await until(lambda: _has_streams(stack, CROWD))
        await more(traffic, 20)
        for writer in writers:
            writer.transport.abort()
        await more(traffic, 100)
        assert traffic.failures == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_connections_to_the_picker_that_are_aborted_fail_no_request(transport: str) -> None:
    [port] = free_ports(1)
    stack = RelayedStack(Plan(workers=3, worker=FAST, picker={"transport": transport}), port)
    async with relay(f"tcp://{stack.picker_address}", port) as way, stack, steady(stack.url, 8, 0.0) as traffic:
        for _ in range(5):
            await more(traffic, 50)
            way.reset()
        await more(traffic, 50)
        assert traffic.failures == []


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_connections_to_the_picker_that_are_aborted_while_answers_are_awaited_fail_none_of_them(
    transport: str,
) -> None:
    [port] = free_ports(1)
    slow = ("--speed", "0.5", "--profile", "8b")
    stack = RelayedStack(Plan(workers=3, worker=slow, picker={"transport": transport}), port)
    async with relay(f"tcp://{stack.picker_address}", port) as way, stack, asyncio.timeout(100):
        waiting = [asyncio.ensure_future(one(stack, _open())) for _ in range(CROWD // 5)]
        await until(lambda: _has_streams(stack, CROWD // 10))
        way.reset()
        assert Counter(await asyncio.gather(*waiting)) == {"200": CROWD // 5}
        await until(lambda: is_forgotten(stack))


class RelayedStack(Stack):
    """Envoy comes to its only picker by another port."""

    def __init__(self, plan: Plan, port: int):
        super().__init__(plan)
        self._port = port

    def _envoy_config(self) -> dict[str, Any]:
        config = msgspec.json.encode(super()._envoy_config())
        picker_port = self.picker_address.rpartition(":")[2]
        relayed: dict[str, Any] = msgspec.json.decode(config.replace(picker_port.encode(), str(self._port).encode()))
        return relayed


@pytest.mark.parametrize(
    ("envoy", "is_killed", "transport"),
    [
        ("fail-open", False, "http2"),
        ("fail-open", True, "http2"),
        ("fail-closed", False, "http2"),
        ("fail-closed", False, "grpcio"),
        ("full-duplex", False, "http2"),
    ],
)
async def test_one_of_two_pickers_is_restarted_and_no_request_fails(
    envoy: str, is_killed: bool, transport: str
) -> None:
    # Killed where Envoy fails closed, a picker takes the requests with it whose streams are open: closed means that.
    plan = Plan(workers=2, pickers=2, envoy=envoy, worker=FAST, picker={"drain_s": 20, "transport": transport})
    async with Stack(plan) as stack, steady(stack.url, users=8, pause_s=0.0) as traffic:
        for number in (0, 1):
            await more(traffic, 100)
            if is_killed:
                stack.pickers[number].kill()
            else:
                await stack.pickers[number].stop(grace_s=30)
            await more(traffic, 100)
            await stack.start_picker(number)
        await more(traffic, 100)
        assert traffic.failures == []


async def _has_streams(stack: Stack, at_least: int) -> bool:
    return (await stack.metrics())["picker_streams"] >= at_least


def _open() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate
