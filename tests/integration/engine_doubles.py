"""Servers with the interfaces of engines that need a GPU: pages over HTTP, events over ZMQ, as their sources have them.

They compute nothing: a test says what they answer and publish.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import uvicorn
import zmq
import zmq.asyncio
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

Page = Any
"""A status, a text, something for JSON, or a function (perhaps a coroutine's) that gives one of these."""


class Pages:
    """An HTTP server whose `pages`, by path, may change at any time. `asked` counts requests by path."""

    def __init__(self, pages: dict[str, Page]) -> None:
        self.pages = pages
        self.asked: dict[str, int] = {}
        self.headers: dict[str, str] = {}
        self.url = ""

    async def answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked[path] = self.asked.get(path, 0) + 1
        self.headers = dict(request.headers)
        page = self.pages.get(path, 404)
        if callable(page):
            page = page()
        if asyncio.iscoroutine(page):
            page = await page
        if isinstance(page, int):
            return Response(status_code=page)
        return PlainTextResponse(page) if isinstance(page, str) else JSONResponse(page)


@asynccontextmanager
async def serving(pages: dict[str, Page]) -> AsyncIterator[Pages]:
    server_pages = Pages(pages)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        await (await server_pages.answer(request))(scope, receive, send)

    config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(server._serve())
        while not server.started:
            await asyncio.sleep(0.01)
        host, port = server.servers[0].sockets[0].getsockname()
        server_pages.url = f"http://{host}:{port}"
        try:
            yield server_pages
        finally:
            server.should_exit = True
            await task


class Events:
    """An engine's PUB socket. `port` is 0 for one that is bound anywhere; `connects` is where it connects instead."""

    def __init__(self, connects: str = "") -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.linger = 0
        self._number = 0
        if connects:
            self.port = 0
            self._socket.connect(connects)
        else:
            self.port = self._socket.bind_to_random_port("tcp://127.0.0.1")

    def publish(self, *events: dict[str, Any], rank: int | None = None) -> None:
        self.send(b"", msgspec.msgpack.encode([0.0, list(events), rank]))

    def send(self, topic: bytes, payload: bytes) -> None:
        self._socket.send_multipart([topic, self._number.to_bytes(8, "big"), payload])
        self._number += 1

    def close(self) -> None:
        self._socket.close()
        self._context.term()


def sglang_pages(tokens: int = 0) -> dict[str, Page]:
    """A ready server without events."""

    async def health() -> int:
        # It waits a second for a token of its own making.
        await asyncio.sleep(1.2)
        return 200

    return {
        "/health": health,
        "/v1/models": {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 8192}]},
        "/metrics": 'sglang:num_running_reqs{model_name="m"} 1.0\nsglang:token_usage{model_name="m"} 0.5\n',
        "/server_info": {"version": "0.5.23", "max_total_num_tokens": 20_000, "kv_events": None},
    }


def sglang_store(tokens: list[int], page: int = 1, **more: Any) -> list[dict[str, Any]]:
    """One event for each page, named by its prefix, as a signed integer."""
    ends = range(page, len(tokens) + 1, page)
    names = [_signed(hash((page, tuple(tokens[:end])))) for end in ends]
    return [
        {
            "type": "BlockStored",
            "block_hashes": [name],
            "parent_block_hash": parent,
            "token_ids": tokens[end - page : end],
            "block_size": page,
            "lora_id": None,
            "medium": "GPU",
            **more,
        }
        for name, parent, end in zip(names, [None, *names], ends, strict=False)
    ]


def _signed(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63


def trtllm_pages(drain: Callable[[], Page]) -> dict[str, Page]:
    """A ready server whose events `drain` hands out."""
    return {
        "/health": 200,
        "/version": {"version": "1.3.0"},
        "/v1/models": {"data": [{"id": "m", "owned_by": "tensorrt_llm"}]},
        "/metrics": [],
        "/kv_cache_events": drain,
    }
