"""Load reports that an engine publishes by itself: SGLang's, over ZMQ, on change and each second.

    frames   "load", number (8 bytes big-endian), payload
    payload  ["LoadStat", running, waiting, tokens held, capacity, rank, waiting uncached tokens, ..]     MessagePack

More fields may follow; what does not fit is skipped. Source: SGLang 0.5.23, scheduler_components/load_publisher.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import zmq
import zmq.asyncio

_MOST_BYTES = 65_536
_QUEUE = 64


@dataclass(frozen=True, slots=True)
class LoadReport:
    """How busy an engine is, by itself. `kv_used`: share of its KV cache, 0 to 1; None where the size is not told."""

    running: int
    waiting: int
    waiting_tokens: int
    kv_used: float | None


class _LoadStat(msgspec.Struct, array_like=True, tag="LoadStat"):
    running: int
    waiting: int
    tokens: int
    capacity: int
    rank: int | None = None
    waiting_uncached_tokens: int = 0


def decode(frames: Sequence[bytes]) -> LoadReport | None:
    """None for frames that are no load report."""
    if len(frames) != 3 or frames[0] != b"load":
        return None
    try:
        stat = msgspec.msgpack.decode(frames[2], type=_LoadStat)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    kv_used = stat.tokens / stat.capacity if stat.capacity > 0 else None
    return LoadReport(stat.running, stat.waiting, stat.waiting_uncached_tokens, kv_used)


async def follow(context: zmq.asyncio.Context, endpoint: str, take: Callable[[LoadReport], None]) -> None:
    """Calls `take` with each report, until cancelled. Of a backlog the newest count only, and they come last."""
    socket = context.socket(zmq.SUB)
    try:
        socket.linger = 0
        socket.ipv6 = True
        socket.rcvhwm = _QUEUE
        socket.maxmsgsize = _MOST_BYTES
        socket.reconnect_ivl_max = 2000
        socket.connect(endpoint)
        socket.subscribe(b"load")
        while True:
            report = decode(await socket.recv_multipart())
            if report is not None:
                take(report)
    finally:
        socket.close()
