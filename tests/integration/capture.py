"""Captures conversations from a real Envoy: `python -m tests.integration.capture` writes tests/data/conversations.json.

Each is a list of messages, `in` from Envoy and `out` from us, as hex, in the order in which they passed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.integration.real_envoy import MODES, RealEnvoy, real_envoy, tell

FILE = Path(__file__).parents[1] / "data" / "conversations.json"
CHAT = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
LARGE = b'{"model": "m", "prompt": "' + b"x" * 70_000 + b'"}'
Scenario = Callable[[RealEnvoy, str], Awaitable[object]]


async def with_trailers(envoy: RealEnvoy, url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
    writer.write(b"2\r\n{}\r\n0\r\nx-sum: 1\r\n\r\n")
    await reader.read()
    writer.close()


async def leaving_early(envoy: RealEnvoy, url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.transport.abort()


SCENARIOS: dict[str, Scenario] = {
    "chat": lambda envoy, url: tell(url, CHAT),
    "get": lambda envoy, url: tell(url),
    "large": lambda envoy, url: tell(url, LARGE),
    "retry": lambda envoy, url: tell(url, CHAT, path=f"/fail/{envoy.upstreams[0]}"),
    "trailers": with_trailers,
    "leaving early": leaving_early,
}


async def capture() -> dict[str, list[list[str]]]:
    """All scenarios in all modes."""
    captured = {}
    async with real_envoy("grpcio") as envoy:
        for mode, url in envoy.urls.items():
            for name, scenario in SCENARIOS.items():
                if name == "large" and mode != "full-duplex":
                    continue
                envoy.streams.clear()
                await scenario(envoy, url)
                await envoy.idle()
                [stream] = envoy.streams or [[]]
                captured[f"{mode}: {name}"] = [[direction, data.hex()] for direction, data in stream]
    return captured


if __name__ == "__main__":
    conversations = asyncio.run(capture())
    FILE.write_text(json.dumps(conversations, indent=0) + "\n")
    print(f"{len(conversations)} conversations in {len(MODES)} modes -> {FILE}")
