"""The comparison with other routers runs, and its figures are of requests that went as meant. Never how fast."""

import asyncio
import math
import sys
from pathlib import Path

import pytest

from benchmarks.common.closed import Task, run
from benchmarks.peers.fronts import PICKERS, ROUTERS
from picker.simulation.process import Process, free_ports
from tests.integration.benchmark_runs import figures


@pytest.mark.envoy
async def test_a_tiny_run_measures_every_front_that_is_installed_without_a_failed_request(tmp_path: Path) -> None:
    found = await figures("peers", tmp_path, "--size", "2", "--rounds", "1", "--seconds", "0.3", "--rate", "60")
    routers = [router.label for router in ROUTERS if router.version]
    labels = [*PICKERS, *routers]
    assert [(row["load"], row["front"]) for row in found["rows"]] == [
        (load, label) for load in ("closed loop", "open loop") for label in labels
    ]
    assert all(row["requests"] > 0 and row["failures"] == 0 for row in found["rows"])
    assert all(0 < row["p50_ms"] <= row["p99_ms"] < math.inf for row in found["rows"])
    assert all({"client", "upstream"} < row["cpu_ms"].keys() for row in found["rows"])
    assert found["base"] == (routers[0] if routers else "Envoy alone")
    assert all(row["x_per_s"] == 1 for row in found["rows"] if row["front"] == found["base"])


async def test_a_closed_loop_sends_one_request_after_the_other_on_each_connection(tmp_path: Path) -> None:
    [port] = free_ports(1)
    upstream = Process("upstream", [sys.executable, "-m", "benchmarks.common.upstream", str(port)], tmp_path / "log")
    upstream.start()
    try:
        await upstream.wait_until(lambda: _listens(port))
        told = await run(Task(f"127.0.0.1:{port}", "model", 2048, connections=3, seconds=0.3, first=0))
        assert told.requests == len(told.latencies_s) > 3
        assert told.failures == 0
        # Three at a time, so they cannot have taken longer than this together.
        assert sum(told.latencies_s) <= 3 * told.seconds
    finally:
        await upstream.stop()


async def test_a_closed_loop_counts_a_connection_that_is_lost() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        told = await run(Task(f"127.0.0.1:{port}", "model", 2048, connections=2, seconds=0.3, first=0))
    assert (told.requests, told.failures) == (2, 2)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
