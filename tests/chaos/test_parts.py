"""The parts of the chaos suite do what they say: a fault that is none would find nothing."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.harness import Clocks, Machine, Names
from tests.chaos.judge import Fates, _difference
from tests.chaos.kv_relay import KvRelay
from tests.chaos.run import Verdict
from tests.chaos.table import runs_of, table
from tests.integration.relay import relay

BATCHES = [[b"topic", number.to_bytes(8, "big"), b"payload"] for number in range(200)]


def passed_on(way: KvRelay) -> list[list[bytes]]:
    return [out for batch in BATCHES for out in way.pass_on(batch)]


def test_batches_pass_as_they_come_unless_some_are_lost_or_overtaken() -> None:
    assert passed_on(KvRelay()) == BATCHES
    lossy = passed_on(KvRelay(lost=0.3))
    assert lossy == [batch for batch in BATCHES if batch in lossy] and 100 < len(lossy) < 180
    disordered = passed_on(KvRelay(late=0.3))
    assert sorted(disordered) != disordered and len(disordered) >= len(BATCHES) - 1
    assert sorted(disordered) == BATCHES[: len(disordered)]


@pytest.mark.skipif(not Clocks.can(), reason="libfaketime is not installed")
def test_a_clock_jumps_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    clocks.jump("agent", "+3600")
    ask = [sys.executable, "-S", "-c", "import time; print(time.time(), time.monotonic())"]
    wall, steady = map(float, subprocess.check_output(clocks.wrapped("agent", ask), text=True).split())
    assert wall - time.time() > 3000
    assert steady <= time.monotonic()


@pytest.mark.skipif(not Names.can(), reason="needs root and unshare")
def test_a_name_is_known_until_it_is_forgotten_and_again_afterwards(tmp_path: Path) -> None:
    names, found = Names(tmp_path), []
    ask = f"import socket; print(socket.getaddrinfo({Names.NAME!r}, 1)[0][4][0])"
    for change in (names.know, names.forget, names.know):
        change()
        told = subprocess.run(names.wrapped([sys.executable, "-S", "-c", ask]), capture_output=True, text=True)
        found.append(told.stdout.strip())
    assert found == ["127.0.0.1", "", "127.0.0.1"]


@pytest.mark.skipif(not Machine.can(), reason="needs root and ip")
def test_from_a_machine_that_is_gone_nothing_comes_back() -> None:
    machine = Machine()
    with socket.create_server((machine.address, 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            client.settimeout(0.3)
            with machine.gone():
                client.sendall(b"lost")
                with pytest.raises(TimeoutError):
                    client.recv(1)
            client.settimeout(30)
            accepted.sendall(b"back")
            assert client.recv(4) == b"back"
            accepted.close()


async def test_a_way_is_stuck_then_flows_is_narrow_and_can_be_reset() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with relay(f"redis://127.0.0.1:{port}") as way:
        reader, writer = await asyncio.open_connection(way.host, way.port)
        way.flows.clear()
        writer.write(b"late")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(4), 0.3)
        way.flows.set()
        assert await reader.read(4) == b"late"
        way.bytes_per_s, started = 1000.0, time.monotonic()
        writer.write(b"x" * 300)
        assert len(await reader.readexactly(300)) == 300
        assert time.monotonic() - started > 0.5
        way.reset()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        writer.close()
    server.close()


def answer(hit: str, cached: int, status: int = 200) -> httpx.Response:
    usage = {"usage": {"prompt_tokens_details": {"cached_tokens": cached}}}
    return httpx.Response(status, headers={"x-picker-decision": f"worker=w hit={hit}"} if hit else {}, json=usage)


def test_a_prediction_is_wrong_beyond_what_blocks_explain_and_where_there_is_none() -> None:
    assert _difference(answer("640/700", 600)) == ""
    assert _difference(answer("640/700", 0))
    assert _difference(answer("", 600))
    assert _difference(answer("640/700", 640, status=503))


def test_the_table_adds_up_runs_and_hides_nothing() -> None:
    fates = [Fates(10, 9, 1), Fates(10, 7, 0, {"no-worker-ready": 2}, ["500"])]
    runs = [Verdict("single", ("worker killed",), each, 1.0 + number, []) for number, each in enumerate(fates)]
    runs.append(Verdict("cluster", ("worker killed",), Fates(5, 5), float("inf"), ["predicted 1, cached 0"]))
    row = table(runs).splitlines()[-1]
    assert "16 of 20, 2 refused (no-worker-ready), 1 broke off, 1 lost, 2.0 s" in row
    assert "5 of 5, 0 lost, inf s, 1 predicted wrong" in row
    assert runs_of(runs) == "1 to 2 runs"
    assert [run.is_well for run in runs] == [True, False, False]


def test_each_fault_says_what_the_design_promises() -> None:
    assert [name for name, fault in FAULTS.items() if not fault.says or not fault.part] == []
