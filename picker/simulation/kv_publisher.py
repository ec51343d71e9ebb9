"""KV events over ZMQ in vLLM's wire form: a PUB socket for what happens, a ROUTER socket for what was missed.

    PUB     topic, sequence (8 bytes big-endian, from 0), payload
    replay  DEALER sends "", first sequence; gets "", topic, sequence, payload for each batch still in the ring,
            then "", "", ff * 8, ""
    payload MessagePack: [unix time, [event, ...], data-parallel rank]

Events are maps since vLLM 0.24 and were arrays before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from picker.simulation.kv_cache import BlockRemoved, BlockStored, CacheEvent

BUFFER_STEPS = 10_000
"""Batches that can be replayed."""
HWM = 100_000
"""Batches that wait for a slow subscriber; past these it loses some."""
_END = b"\xff" * 8
_RANK = 0


class KvFormat(StrEnum):
    """How an event is encoded."""

    MAP = "map"
    ARRAY = "array"


class KvPublisher:
    """The two sockets. Binding happens at once; `run` serves replays until it is cancelled."""

    def __init__(
        self,
        host: str,
        *,
        port: int = 0,
        replay_port: int = 0,
        adapters: Sequence[str] = (),
        kv_format: KvFormat = KvFormat.MAP,
    ):
        """Port 0: any free one. Raises OSError when a port is taken."""
        self.topic = ""
        self._adapters = {name: number for number, name in enumerate(adapters, start=1)}
        self._encode = _as_map if kv_format is KvFormat.MAP else _as_array
        self._context = zmq.Context()
        self._publisher = self._context.socket(zmq.PUB)
        self._replay = zmq.asyncio.Socket(self._context, zmq.ROUTER)
        self._publisher.sndhwm = HWM
        # A ROUTER drops what exceeds its limit, and a whole ring may be asked for.
        self._replay.sndhwm = BUFFER_STEPS + 1
        try:
            self.endpoint = _bind(self._publisher, host, port)
            self.replay_endpoint = _bind(self._replay, host, replay_port)
        except OSError:
            self.close()
            raise
        self._ring: deque[tuple[bytes, bytes]] = deque(maxlen=BUFFER_STEPS)
        self._next_sequence = 0

    def publish(self, events: Sequence[CacheEvent]) -> None:
        """Send a batch, if there is anything in it. Never blocks."""
        if not events:
            return
        encoded = [self._encode(event, self._adapters) for event in events]
        payload = msgspec.msgpack.encode([time.time(), encoded, _RANK])
        sequence = self._next_sequence.to_bytes(8, "big")
        self._next_sequence += 1
        self._ring.append((sequence, payload))
        self._publisher.send_multipart([self.topic.encode(), sequence, payload])

    async def run(self) -> None:
        """Answer replay requests."""
        while True:
            frames = await self._replay.recv_multipart()
            # vLLM ignores what has no empty delimiter, and reads any number of bytes as the start.
            if len(frames) == 3 and not frames[1]:
                await self._replay_from(frames[0], int.from_bytes(frames[2], "big"))

    async def _replay_from(self, client: bytes, start: int) -> None:
        for sequence, payload in list(self._ring):
            if int.from_bytes(sequence, "big") >= start:
                await self._replay.send_multipart([client, b"", self.topic.encode(), sequence, payload])
        await self._replay.send_multipart([client, b"", b"", _END, b""])

    def close(self) -> None:
        """Close both sockets; what is not sent yet is dropped."""
        self._publisher.close(linger=0)
        self._replay.close(linger=0)
        self._context.term()


def _bind(socket: zmq.Socket[Any], host: str, port: int) -> str:
    if ":" in host:
        socket.ipv6 = True
        host = f"[{host}]"
    try:
        socket.bind(f"tcp://{host}:{port or '*'}")
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"cannot bind {host}:{port} for KV events: {error}") from None
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.decode().rstrip("\0")


def _as_map(event: CacheEvent, adapters: dict[str, int]) -> dict[str, Any]:
    match event:
        case BlockStored():
            return {
                "type": "BlockStored",
                "block_hashes": event.block_hashes,
                "parent_block_hash": event.parent_block_hash,
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": adapters.get(event.lora_name or ""),
                "medium": "GPU",
                "lora_name": event.lora_name,
                "extra_keys": event.extra_keys,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        case BlockRemoved():
            return {"type": "BlockRemoved", "block_hashes": event.block_hashes, "medium": "GPU", "group_idx": 0}
        case _:
            return {"type": "AllBlocksCleared"}


def _as_array(event: CacheEvent, adapters: dict[str, int]) -> list[Any]:
    match event:
        case BlockStored():
            return [
                "BlockStored",
                event.block_hashes,
                event.parent_block_hash,
                event.token_ids,
                event.block_size,
                adapters.get(event.lora_name or ""),
                "GPU",
                event.lora_name,
                event.extra_keys,
            ]
        case BlockRemoved():
            return ["BlockRemoved", event.block_hashes, "GPU"]
        case _:
            return ["AllBlocksCleared"]
