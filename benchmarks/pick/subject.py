"""A picker with everything on that `picker serve` has by default, without sockets: bytes of Envoy's in, answers out."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random
from typing import Any

from benchmarks.common.conversations import Conversations
from benchmarks.pick.envoy import GREETING, REQUEST, exchange
from picker.config import Config
from picker.events.recorder import Recorder
from picker.extproc.actions import Pick
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Settings
from picker.extproc.service import METHOD, ExtProcService
from picker.fleet.view import View
from picker.observing import Observer
from picker.picking import Picker
from picker.ports import http2_limits
from picker.prompts.tokenizer import ModelTokenizer
from picker.redisview.records import WorkerRecord, WorkerState
from picker.server import prompt_reader
from picker.telemetry.decisions import DecisionMetrics
from picker.telemetry.metrics import Metrics
from picker.transport.protocol import GrpcProtocol, Host

MODEL = "model"
_BLOCKS_EACH = 1000


class Socket:
    """What asyncio hands to a protocol. `written` is what was written last."""

    written = b""

    def write(self, data: bytes) -> None:  # noqa: D102
        self.written = data

    def get_extra_info(self, name: str) -> Socket:  # noqa: D102
        return self

    def setsockopt(self, *option: int) -> None:  # noqa: D102
        pass

    def set_write_buffer_limits(self, high: int) -> None:  # noqa: D102
        pass


class Subject:
    """One picker with one connection of Envoy's. To be made inside a running event loop."""

    def __init__(
        self,
        workers: int,
        size: int,
        tokenizers: Mapping[str, ModelTokenizer] | None = None,
        view: View | None = None,
        model: str = MODEL,
    ):
        """`size` is that of the bodies. `view` is a fleet that is there already, and `model` what it serves."""
        config = Config()
        self.view = view or _fleet(workers)
        self.numbers = count()
        """Of requests on this connection; each is to be used once."""
        self.metrics = Metrics()
        recorder = Recorder(config.events, "benchmark")
        DecisionMetrics(self.metrics.registry, recorder)
        reader = prompt_reader(tokenizers or {}, config.limits)
        observer = Observer(recorder, self.view)
        self.picker = Picker(config, self.view, reader, self.metrics, lambda: False, observer)
        budget = ByteBudget(config.limits.max_held_bytes)
        self.service = ExtProcService(self.picker, self.metrics, Settings(), budget, self.picker.turn_away)
        host = Host(http2_limits(config), budget, self.metrics.misbehaved, {METHOD: self.service.open}.get)
        self._conversations = Conversations(size, model)
        self._socket: Any = Socket()
        self._protocol = GrpcProtocol(host)
        self._protocol.connection_made(self._socket)
        self._protocol.data_received(GREETING)

    async def warm_up(self, requests: int) -> None:
        """Two workers come to hold the known half of the prompts, wholly and in part; then so many requests."""
        _, prefix = await self.picker.look_up(Pick(REQUEST, self._conversations.body(1)))
        for slot, share in zip(self.view.slots(), (1, 2), strict=False):
            self.view.index.store(slot, prefix.blocks[: len(prefix.blocks) // share])
        for number in range(requests):
            self.answer(self.prepare(number))

    def prepare(self, number: int) -> list[bytes]:
        """The pieces of one request."""
        return list(exchange(number, self._conversations.body(number)))

    def answer(self, pieces: list[bytes]) -> None:
        """All that the picker does about one request."""
        for piece in pieces:
            self._protocol.data_received(piece)

    @property
    def written(self) -> bytes:
        """What the picker has said last."""
        return bytes(self._socket.written)

    def close(self) -> None:
        """Lets go of threads."""
        self.picker.close()


def _fleet(workers: int) -> View:
    """Workers that announce their blocks, as agents would have published them, each with a cache of others' prompts."""
    view, rng = View(capacity=workers), Random(0)
    for number in range(workers):
        endpoint = f"10.0.{number // 250}.{number % 250 + 1}:8000"
        record = WorkerRecord(
            worker=endpoint,
            epoch=number,
            endpoint=endpoint,
            state=WorkerState.READY,
            models=(MODEL,),
            publishes_kv=True,
        )
        slot = view.admit(record, now=0.0)
        view.index.trust(slot, True)
        view.index.store(slot, [rng.getrandbits(64) for _ in range(_BLOCKS_EACH)])
    return view
