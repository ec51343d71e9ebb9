"""Follows one engine's KV events over ZMQ: batches in order, without a gap, or word that they cannot be had.

An engine publishes numbered batches and keeps the last of them (vLLM: 10,000) for a replay socket. The numbers start
from 0 with the engine's process, and nothing on the wire tells one process from the next. Hence:

- A batch beyond the next number is a gap: what lies between is asked for. Where it is no longer kept, the state built
  so far is worthless (`lost`).
- A replay is asked for from the *last* batch on, not from the next one. An engine that does not have it, or has another
  one under its number, is a new process (`restarted`). A live batch with an old number is one too, unless it is the
  very batch that a replay has brought already.
- A subscription takes effect some time after it is made, on the first connection and on every reconnection, and the
  batches before that are not sent. The gap shows with the next batch; for an engine that falls silent, the question is
  asked again after `recheck_s`.

While a replay is awaited or a batch is worked on, ZMQ's own thread goes on receiving, into a queue of `receive_queue`
batches; what does not fit is dropped by the engine, which is a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import zmq
import zmq.asyncio

from picker.agent.events import Batch, Limits, Malformed, decode

_NUMBER_BYTES = 8
_END = -1


class Handler(Protocol):
    """Who is told. Called in order, from the subscriber's task; must not block."""

    def batch(self, batch: Batch) -> None:
        """The next batch."""

    def lost(self) -> None:
        """Batches are missing: what was built from earlier ones is wrong. The next batch starts from nothing."""

    def restarted(self) -> None:
        """The engine is a new process: its cache is empty. The next batch starts from nothing."""


@dataclass(frozen=True, slots=True)
class SubscriberSettings:
    """Bounds. A replay takes up to 0.1 s on an idle vLLM, which looks for requests between batches."""

    receive_queue: int = 10_000
    limits: Limits = field(default_factory=Limits)
    reply_timeout_s: float = 1.0
    replay_deadline_s: float = 10.0
    recheck_s: float = 2.0
    recheck_max_s: float = 60.0


@dataclass(slots=True)
class Statistics:
    """Counts since the subscriber was made. `next` is the number of the batch that is due."""

    next: int = 0
    batches: int = 0
    gaps: int = 0
    lost: int = 0
    restarts: int = 0
    replays: int = 0
    replays_failed: int = 0
    malformed: int = 0
    ignored_frames: int = 0


class Place(enum.Enum):
    """Where a batch stands in the order."""

    NEXT = enum.auto()
    REPEATED = enum.auto()
    BEYOND = enum.auto()
    FOREIGN = enum.auto()


class Order:
    """The numbers of one engine process's batches. Pure.

    Remembers the last `remembered` batches by hash: enough for what is both replayed and in the receive queue.
    """

    def __init__(self, remembered: int = 1024) -> None:
        self._remembered = remembered
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.next = 0
        self._seen: dict[int, int] = {}

    @property
    def resume(self) -> int:
        """Where to ask for a replay: the last batch taken."""
        return max(0, self.next - 1)

    def place(self, number: int, payload: bytes) -> Place:
        """Where a batch stands."""
        if number == self.next:
            return Place.NEXT
        if number > self.next:
            return Place.BEYOND
        return Place.REPEATED if self._seen.get(number) == hash(payload) else Place.FOREIGN

    def take(self, number: int, payload: bytes) -> None:
        """Goes on from this batch."""
        self.next = number + 1
        self._seen[number] = hash(payload)
        self._seen.pop(number - self._remembered, None)


class Subscriber:
    """`run` follows `events`, a PUB socket, and asks `replay`, a ROUTER socket, for what it missed, if there is one.

    `is_bound_here`: the PUB socket connects to us, as vLLM's does where its endpoint names a host.
    """

    def __init__(
        self,
        context: zmq.asyncio.Context,
        events: str,
        replay: str | None,
        handler: Handler,
        settings: SubscriberSettings = SubscriberSettings(),
        is_bound_here: bool = False,
    ) -> None:
        self._context = context
        self._events = events
        self._is_bound_here = is_bound_here
        self._replay_from = replay
        self._handler = handler
        self._settings = settings
        self._order = Order()
        self._counts = Statistics()
        self._holds_state = False
        self._recheck_s = settings.recheck_s

    def statistics(self) -> Statistics:
        """A copy."""
        return replace(self._counts, next=self._order.next)

    async def run(self) -> None:
        """Until cancelled. An engine that is not there yet, or no more, is waited for.

        Raises zmq.ZMQError for an endpoint that cannot be used.
        """
        with self._socket(zmq.SUB, self._events, self._is_bound_here) as socket:
            # The topic is the operator's free text: it proves nothing and filters nothing.
            socket.subscribe(b"")
            await self._catch_up()
            while True:
                if await socket.poll(self._patience_ms()):
                    await self._receive(await socket.recv_multipart())
                else:
                    await self._catch_up()
                # Frames that lie ready are returned without a turn of the loop: let others have theirs.
                await asyncio.sleep(0)

    @contextlib.contextmanager
    def _socket(self, kind: int, endpoint: str, binds: bool = False) -> Iterator[zmq.asyncio.Socket]:
        socket = self._context.socket(kind)
        try:
            socket.linger = 0
            socket.ipv6 = True
            socket.rcvhwm = self._settings.receive_queue
            socket.maxmsgsize = self._settings.limits.payload_bytes
            socket.reconnect_ivl_max = 2000
            (socket.bind if binds else socket.connect)(endpoint)
            yield socket
        finally:
            socket.close()

    def _patience_ms(self) -> int | None:
        return None if self._replay_from is None else int(self._recheck_s * 1000)

    # -- live ----------------------------------------------------------------------------------------------------

    async def _receive(self, frames: Sequence[bytes]) -> None:
        number = _number(frames[1]) if len(frames) == 3 else None
        if number is None or number < 0:
            self._counts.ignored_frames += 1
            return
        payload = frames[2]
        if self._order.place(number, payload) is Place.BEYOND:
            self._counts.gaps += 1
            await self._catch_up()
        if self._order.place(number, payload) is Place.FOREIGN:
            self._restart()
            await self._catch_up()
        if self._order.place(number, payload) in (Place.NEXT, Place.BEYOND):
            self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        if self._order.place(number, payload) is Place.BEYOND:
            self._lose()
        self._order.take(number, payload)
        try:
            batch = decode(payload, self._settings.limits)
        except Malformed:
            self._counts.malformed += 1
            self._lose()
            return
        self._counts.batches += 1
        self._holds_state = True
        self._handler.batch(batch)

    def _lose(self) -> None:
        # Without state there is nothing to lose: an engine that sends only garbage is told of once.
        if self._holds_state:
            self._holds_state = False
            self._counts.lost += 1
            self._handler.lost()

    def _restart(self) -> None:
        self._order.reset()
        if self._holds_state:
            self._holds_state = False
            self._counts.restarts += 1
            self._handler.restarted()

    # -- replay --------------------------------------------------------------------------------------------------

    async def _catch_up(self) -> None:
        """Takes what follows the last batch, as far as the engine still has it."""
        if self._replay_from is None:
            return
        self._counts.replays += 1
        try:
            async with asyncio.timeout(self._settings.replay_deadline_s):
                while await self._replay(self._replay_from):
                    pass
        except TimeoutError:
            self._counts.replays_failed += 1
            self._recheck_s = min(2 * self._recheck_s, self._settings.recheck_max_s)
        else:
            self._recheck_s = self._settings.recheck_s

    async def _replay(self, endpoint: str) -> bool:
        """One question, and the answers to it. True: ask again. Raises TimeoutError."""
        # A new socket for each question: a late answer to an earlier one cannot be taken for one to this.
        with self._socket(zmq.DEALER, endpoint) as socket:
            await socket.send_multipart([b"", self._order.resume.to_bytes(_NUMBER_BYTES, "big")])
            answers = taken = 0
            while (answer := await self._answer(socket)) is not None:
                answers += 1
                place = self._order.place(*answer)
                if place is Place.FOREIGN:
                    self._restart()
                    return True
                # A ROUTER drops what does not fit into its queue for us, so a reply can have holes of its own.
                if place is Place.BEYOND and taken:
                    return True
                if place is not Place.REPEATED:
                    self._take(*answer)
                    taken += 1
                await asyncio.sleep(0)
        if not answers and self._order.next:
            self._restart()
        return False

    async def _answer(self, socket: zmq.asyncio.Socket) -> tuple[int, bytes] | None:
        """The next batch of a replay, None at its end. Raises TimeoutError."""
        while True:
            async with asyncio.timeout(self._settings.reply_timeout_s):
                frames = await socket.recv_multipart()
            # vLLM before #45174 sends no topic: ["", number, payload]; since then ["", topic, number, payload].
            number = _number(frames[-2]) if len(frames) in (3, 4) else None
            if number == _END:
                return None
            if number is not None and number >= 0:
                return number, frames[-1]
            self._counts.ignored_frames += 1


def _number(frame: bytes) -> int | None:
    return int.from_bytes(frame, "big", signed=True) if len(frame) == _NUMBER_BYTES else None
