"""The same for whole requests, with the transport: `python -m benchmarks.events.whole`. Each contender is a process."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from statistics import median
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from benchmarks.common.cpu import cpu_s
from benchmarks.events.__main__ import _BODY, _HEADERS, CONTENDERS, Subject
from picker.config import Config
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.service import METHOD, ExtProcService
from picker.ports import http2_limits
from picker.transport.server import Http2Server

_CONTENDERS = 3
_WORKERS = 64
_ROUNDS = 40
_REQUESTS = 480
_AT_ONCE = 8
_BUFFERED = 2


async def _serve(number: int) -> None:
    subject = Subject(_WORKERS, CONTENDERS[number], "unused")
    budget = ByteBudget(1 << 30)
    service = ExtProcService(subject.picker, subject.metrics, Settings(), budget)
    server = Http2Server(http2_limits(Config()), budget, subject.metrics.misbehaved)
    server.add_method(METHOD, service.open)
    print(await server.start("127.0.0.1", 0), flush=True)
    # As `picker serve` does.
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


def _headers(number: int) -> bytes:
    message = pb.ProcessingRequest()
    for name, value in {**_HEADERS, "x-request-id": str(number)}.items():
        header = message.request_headers.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    message.protocol_config.request_body_mode = _BUFFERED
    return bytes(message.SerializeToString())


def _response() -> bytes:
    message = pb.ProcessingRequest()
    header = message.response_headers.headers.headers.add()
    header.key, header.raw_value = ":status", b"200"
    return bytes(message.SerializeToString())


_REST = (
    pb.ProcessingRequest(request_body=pb.HttpBody(body=_BODY, end_of_stream=True)).SerializeToString(),
    _response(),
)


async def _request(method: Any, number: int) -> None:
    call = method()
    for message in (_headers(number), *_REST):
        await call.write(message)
        await call.read()
    await call.done_writing()
    await call.read()


async def _round(port: int, pid: int) -> float:
    """CPU microseconds of the picker for one request."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.stream_stream(METHOD)
        before = cpu_s(pid)
        for first in range(0, _REQUESTS, _AT_ONCE):
            await asyncio.gather(*(_request(method, first + each) for each in range(_AT_ONCE)))
        return (cpu_s(pid) - before) / _REQUESTS * 1e6


def _start(number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.events.whole", str(number)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def _measure() -> None:
    servers = [_start(number) for number in range(_CONTENDERS)]
    found: list[list[float]] = [[] for _ in servers]
    try:
        ports = [int(server.stdout.readline()) for server in servers if server.stdout]
        for number in range(1 + _ROUNDS):
            for server, port, times in zip(servers, ports, found, strict=True):
                spent = await _round(port, server.pid)
                # The first one warms up.
                times.extend([spent] if number else [])
    finally:
        for server in servers:
            server.kill()
            server.wait()
    for contender, times in zip(CONTENDERS, found, strict=False):
        more = median(each - plain for each, plain in zip(times, found[0], strict=True))
        print(f"{contender.name:28} {median(times):6.0f} us {more:+6.1f} us  {1 + more / median(found[0]):.2f}")


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])) if sys.argv[1:] else _measure())
