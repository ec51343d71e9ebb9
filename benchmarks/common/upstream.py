"""Workers that cost nothing: one process that answers each request at once with the same small JSON, on several ports.

Asked for its models it names one, since some routers send no request before that.

python -m benchmarks.common.upstream 8001 8002
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import cast

import msgspec
import uvloop

from picker.simulation.stack import MODEL

_BODY = b'{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"yes"}}]}'
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_CHAT = _ANSWER % (len(_BODY), _BODY)
_MODELS = msgspec.json.encode({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]})
_LIST = _ANSWER % (len(_MODELS), _MODELS)
_ASKS_FOR_MODELS = b"GET /v1/models"
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"


class Worker(asyncio.Protocol):
    """One connection of Envoy's, which sends the next request only after the answer."""

    def __init__(self) -> None:
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        # uvloop's transports are asyncio's by their methods, not by inheritance.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._received += data
        if _is_whole(self._received):
            self._transport.write(_LIST if self._received.startswith(_ASKS_FOR_MODELS) else _CHAT)
            self._received.clear()


def _is_whole(received: bytearray) -> bool:
    head_end = received.find(_HEAD_END)
    if head_end < 0:
        return False
    _, has_length, rest = bytes(received[:head_end]).lower().partition(b"content-length:")
    if has_length:
        return len(received) >= head_end + len(_HEAD_END) + int(rest.partition(b"\r\n")[0])
    # Envoy drops the length where ext_proc hands the body back. JSON holds no CR, so this is the end and not text.
    return b"chunked" not in bytes(received[:head_end]).lower() or received.endswith(_LAST_CHUNK)


async def _serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        for port in ports:
            await stack.enter_async_context(await loop.create_server(Worker, "127.0.0.1", port))
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve([int(port) for port in sys.argv[1:]]))
