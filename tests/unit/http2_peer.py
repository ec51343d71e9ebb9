"""An HTTP/2 client by another hand (`h2`) that talks to our connection in memory; frames for what it would not do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
from hpack import Encoder

from picker.extproc.budget import ByteBudget
from picker.transport.connection import Connection
from picker.transport.errors import Reason
from picker.transport.events import Ended, Event, HalfClosed, Misbehaved, Opened, Received
from picker.transport.frames import ACK, END_HEADERS, PREFACE, FrameType, frame
from picker.transport.limits import Limits
from picker.transport.streams import Stream

PATH = "/service/Method"
HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)


def prefixed(data: bytes, is_compressed: bool = False) -> bytes:
    """A gRPC message with what stands before it."""
    return bytes([is_compressed]) + len(data).to_bytes(4, "big") + data


def block(headers: Iterable[tuple[str, str]] = HEADERS) -> bytes:
    """A header block that leaves no trace in a dynamic table."""
    return Encoder().encode([(name, value, True) for name, value in headers])


@dataclass
class Raw:
    """Our connection, greeted, and fed with frames made by hand."""

    limits: Limits = field(default_factory=Limits)
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(1 << 30))
    now: float = 0.0
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.connection = Connection(self.limits, self.budget, self.now)
        self.receive(PREFACE + frame(FrameType.SETTINGS, 0, 0) + frame(FrameType.SETTINGS, ACK, 0))
        self.output()

    def receive(self, data: bytes) -> list[Event]:
        events = self.connection.receive(data, self.now)
        self.events += events
        return events

    def sweep(self) -> list[Event]:
        events = self.connection.sweep(self.now)
        self.events += events
        return events

    def output(self) -> list[tuple[int, int, int, bytes]]:
        """The frames that we have said since the last time."""
        return list(parsed(self.connection.take_output()))

    def open(self, stream_id: int, data: bytes = b"", flags: int = 0) -> Stream:
        self.receive(frame(FrameType.HEADERS, END_HEADERS | (flags if not data else 0), stream_id, block()))
        if data:
            self.receive(frame(FrameType.DATA, flags, stream_id, data))
        return self.connection.streams[stream_id]

    @property
    def misdeeds(self) -> list[Reason]:
        return [event.reason for event in self.events if isinstance(event, Misbehaved)]


def parsed(data: bytes) -> Iterable[tuple[int, int, int, bytes]]:
    """Frames, cut in the plainest way."""
    while data:
        size = int.from_bytes(data[:3], "big")
        assert len(data) >= 9 + size
        yield data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]
        data = data[9 + size :]


class Peers:
    """A client and our connection; `talk` carries bytes both ways until both are silent."""

    def __init__(self, limits: Limits | None = None, budget: ByteBudget | None = None):
        self.now = 0.0
        self.budget = budget or ByteBudget(1 << 30)
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        self.client.initiate_connection()
        self.server = Connection(limits or Limits(), self.budget, self.now)
        self.seen: list[Event] = []
        self.answers: list[h2.events.Event] = []
        self.talk()

    def talk(self, cut: int = 1 << 20) -> None:
        while True:
            to_server = self.client.data_to_send()
            for start in range(0, len(to_server), cut):
                self.seen += self.server.receive(to_server[start : start + cut], self.now)
            to_client = self.server.take_output()
            if not to_server and not to_client:
                return
            self.answers += self.client.receive_data(to_client)

    def request(self, *messages: bytes, end: bool = True, more: Iterable[tuple[str, str]] = ()) -> int:
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, [*HEADERS, *more])
        for message in messages:
            self.client.send_data(stream_id, prefixed(message))
        if end:
            self.client.end_stream(stream_id)
        self.talk()
        return stream_id

    def stream(self, stream_id: int) -> Stream:
        return self.server.streams[stream_id]

    def received(self, stream_id: int) -> list[bytes]:
        return [event.message for event in self.of(stream_id) if isinstance(event, Received)]

    def of(self, stream_id: int) -> list[Opened | Received | HalfClosed | Ended]:
        return [event for event in self.seen if not isinstance(event, Misbehaved) and event.stream.id == stream_id]

    def answered(self, kind: type[Any], stream_id: int) -> list[Any]:
        return [e for e in self.answers if isinstance(e, kind) and e.stream_id == stream_id]

    def data(self, stream_id: int) -> bytes:
        return b"".join(event.data for event in self.answered(h2.events.DataReceived, stream_id))

    def trailers(self, stream_id: int) -> dict[str, str]:
        """The end of the answer, also where it is all of it."""
        kinds = (h2.events.TrailersReceived, h2.events.ResponseReceived)
        headers = [event.headers for kind in kinds for event in self.answered(kind, stream_id)]
        return {text(name): text(value) for name, value in headers[0]} if headers else {}


def text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
