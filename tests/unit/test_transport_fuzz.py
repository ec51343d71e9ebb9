"""Frames in any order, sense and nonsense, cut anywhere; and long legal conversations with a client by another hand."""

from __future__ import annotations

from collections import defaultdict

import h2.events
import h2.exceptions
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from picker.extproc.budget import ByteBudget
from picker.transport.connection import Connection
from picker.transport.events import Ended, Event, HalfClosed, Misbehaved, Opened, Received
from picker.transport.frames import END_HEADERS, END_STREAM, PREFACE, FrameType, frame
from picker.transport.limits import Limits
from tests.unit.http2_peer import HEADERS, Peers, block, parsed, prefixed

SMALL = Limits(
    max_streams=4, max_message_bytes=300, max_header_bytes=400, stream_window_bytes=2000, control_frames_per_s=20,
    resets_per_s=5,
)  # fmt: skip
IDS = st.sampled_from([0, 1, 1, 1, 3, 3, 5, 7, 9, 2, 2**31 - 1])
FLAGS = st.sampled_from([0, 0, 1, 4, 4, 5, 8, 12, 0x20, 0x24, 0xFF])
NUMBERS = st.sampled_from([0, 1, 100, 65_535, 2**31 - 1, 2**32 - 1])
BLOCKS = st.one_of(
    st.just(block()),
    st.just(block([*HEADERS, ("grpc-timeout", "1S")])),
    st.just(block()[:20]),
    st.just(block()[20:]),
    st.binary(max_size=40),
)
PAYLOADS = st.one_of(
    st.binary(max_size=60),
    st.binary(max_size=60).map(prefixed),
    st.lists(st.binary(max_size=30).map(prefixed), max_size=4).map(b"".join),
    st.integers(1, 30).map(lambda n: prefixed(b"x" * 40)[:n]),
    st.just(prefixed(b"x" * 301)),
    st.just(prefixed(b"x", True)),
)


@st.composite
def pairs(draw: st.DrawFn) -> bytes:
    """What a SETTINGS frame holds."""
    items = draw(st.lists(st.tuples(st.integers(0, 9), NUMBERS), max_size=4))
    return b"".join(name.to_bytes(2, "big") + value.to_bytes(4, "big") for name, value in items)


def four(number: int) -> bytes:
    return number.to_bytes(4, "big")


FRAMES = st.one_of(
    st.builds(frame, st.just(FrameType.HEADERS), FLAGS, IDS, BLOCKS),
    st.builds(frame, st.just(FrameType.HEADERS), st.just(END_HEADERS), IDS, st.just(block())),
    st.builds(frame, st.just(FrameType.CONTINUATION), FLAGS, IDS, BLOCKS),
    st.builds(frame, st.just(FrameType.DATA), FLAGS, IDS, PAYLOADS),
    st.builds(frame, st.just(FrameType.DATA), st.sampled_from([0, 1]), IDS, PAYLOADS),
    st.builds(frame, st.just(FrameType.RST_STREAM), FLAGS, IDS, NUMBERS.map(four)),
    st.builds(frame, st.just(FrameType.WINDOW_UPDATE), FLAGS, IDS, NUMBERS.map(four)),
    st.builds(frame, st.just(FrameType.SETTINGS), st.sampled_from([0, 0, 1]), st.just(0), pairs()),
    st.builds(frame, st.just(FrameType.PING), st.sampled_from([0, 1]), st.just(0), st.binary(min_size=8, max_size=8)),
    st.builds(frame, st.sampled_from(list(FrameType)), FLAGS, IDS, st.binary(max_size=20)),
    st.binary(max_size=30),
)
GREETING = PREFACE + frame(FrameType.SETTINGS, 0, 0)


@st.composite
def sensible(draw: st.DrawFn) -> bytes:
    """Streams opened in their order, with messages cut anywhere; now and then a frame that may be wrong."""
    said, next_id = b"", 1
    rest: dict[int, bytes] = {}
    for _ in range(draw(st.integers(1, 30))):
        step = draw(st.sampled_from(["open", "data", "data", "data", "data", "end", "reset", "window", "odd"]))
        if step == "odd":
            said += draw(FRAMES)
        elif step == "open" or not rest:
            said += frame(FrameType.HEADERS, END_HEADERS, next_id, block())
            rest[next_id] = draw(st.lists(st.binary(max_size=80).map(prefixed), max_size=5).map(b"".join))
            next_id += 2
        else:
            stream_id = draw(st.sampled_from(sorted(rest)))
            size = draw(st.integers(1, 200))
            piece, later = rest[stream_id][:size], rest.pop(stream_id)[size:]
            if step == "data":
                said += frame(FrameType.DATA, 0, stream_id, piece)
                rest[stream_id] = later
            elif step == "window":
                said += frame(FrameType.WINDOW_UPDATE, 0, stream_id, four(1000))
                rest[stream_id] = piece + later
            elif step == "end":
                said += frame(FrameType.DATA, END_STREAM, stream_id, piece + later)
            else:
                said += frame(FrameType.RST_STREAM, 0, stream_id, four(8))
    return said


CONVERSATIONS = st.one_of(st.lists(FRAMES, max_size=40).map(b"".join), sensible()).map(lambda data: GREETING + data)


def is_legal(events: list[Event], finished: set[object]) -> bool:
    """Opened, then messages, then at most one half-close, for each stream; and one end unless we have finished it."""
    seen: dict[object, list[type]] = defaultdict(list)
    for event in events:
        if not isinstance(event, Misbehaved):
            seen[event.stream].append(type(event))
    return all(
        kinds[0] is Opened
        and kinds.count(Opened) == 1
        and kinds.count(HalfClosed) <= 1
        and kinds.count(Ended) <= 1
        and (Ended not in kinds or kinds[-1] is Ended)
        and (HalfClosed not in kinds or Received not in kinds[kinds.index(HalfClosed) :])
        and (Ended in kinds) is (stream not in finished)
        for stream, kinds in seen.items()
    )


@settings(max_examples=400)
@given(data=CONVERSATIONS, cuts=st.lists(st.integers(1, 200), min_size=1, max_size=30), answers=st.booleans())
def test_nothing_that_a_peer_sends_makes_the_connection_raise_or_leak(
    data: bytes, cuts: list[int], answers: bool
) -> None:
    budget = ByteBudget(1000)
    connection = Connection(SMALL, budget, 0.0)
    events: list[Event] = []
    finished: set[object] = set()
    said = b""
    now, start, turn = 0.0, 0, 0
    while start < len(data):
        size = cuts[turn % len(cuts)]
        turn, now = turn + 1, now + 0.01
        fresh = connection.receive(data[start : start + size], now)
        start += size
        for event in fresh if answers else ():
            if isinstance(event, Received):
                connection.send(event.stream, event.message * 3)
            elif isinstance(event, HalfClosed) and not event.stream.is_finished:
                connection.finish(event.stream)
                finished.add(event.stream)
        events += fresh + connection.sweep(now)
        said += connection.take_output()
        assert 0 <= budget.taken <= budget.limit
        assert len(connection.streams) <= SMALL.max_streams
    events += connection.lose()
    assert budget.taken == 0
    assert not connection.streams
    assert is_legal(events, finished)
    assert sum(1 for _ in parsed(said)) >= 2


def told(event: Event) -> object:
    """An event without the stream as it is now."""
    return event if isinstance(event, Misbehaved) else (type(event), event.stream.id, *event[1:])


@settings(max_examples=300)
@given(data=CONVERSATIONS, size=st.integers(1, 50))
def test_however_it_is_cut_it_means_the_same(data: bytes, size: int) -> None:
    def heard(pieces: list[bytes]) -> tuple[list[object], bytes]:
        connection = Connection(SMALL, ByteBudget(1000), 0.0)
        events = [told(event) for piece in pieces for event in connection.receive(piece, 0.0)]
        return events, connection.take_output()

    assert heard([data]) == heard([data[start : start + size] for start in range(0, len(data), size)])


class Conversation(RuleBasedStateMachine):
    """A legal client and an echoing server. What the client gets must be what it sent, whatever the windows do."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.peers = Peers(Limits(stream_window_bytes=3000), ByteBudget(1 << 20))
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.read = 0

    def echo(self) -> None:
        """The server answers what it has received, and ends what the client has ended."""
        self.peers.talk()
        while self.read < len(self.peers.seen):
            event = self.peers.seen[self.read]
            self.read += 1
            if isinstance(event, Received):
                self.peers.server.send(event.stream, event.message)
            elif isinstance(event, HalfClosed):
                self.peers.server.finish(event.stream)
        self.peers.talk()

    @rule(target=streams)
    def open(self) -> int:
        return self.peers.request(end=False)

    @rule(stream_id=streams, size=st.integers(0, 900), fill=st.integers(0, 255), pad=st.sampled_from([None, 0, 20]))
    def send(self, stream_id: int, size: int, fill: int, pad: int | None) -> None:
        data = prefixed(bytes([fill]) * size)
        if self.peers.client.local_flow_control_window(stream_id) >= len(data) + 21:
            self.peers.client.send_data(stream_id, data, pad_length=pad)
            self.sent[stream_id] += data
        self.echo()

    @rule(stream_id=consumes(streams))
    def end(self, stream_id: int) -> None:
        self.peers.client.end_stream(stream_id)
        self.echo()

    @rule(stream_id=consumes(streams))
    def reset(self, stream_id: int) -> None:
        self.peers.client.reset_stream(stream_id)
        self.sent.pop(stream_id, None)
        self.echo()

    @rule(target=streams, stream_id=consumes(streams), size=st.integers(1, 70_000))
    def allow(self, stream_id: int, size: int) -> object:
        self.peers.client.increment_flow_control_window(size, stream_id)
        self.peers.client.increment_flow_control_window(size)
        self.echo()
        return multiple(stream_id)

    @rule(size=st.sampled_from([0, 1, 100, 5000, 65_535]))
    def resize(self, size: int) -> None:
        self.peers.client.update_settings({4: size})
        self.echo()

    @rule(is_paused=st.booleans())
    def socket(self, is_paused: bool) -> None:
        if is_paused:
            self.peers.server.pause()
        else:
            self.peers.server.go_on()
        self.echo()

    @invariant()
    def nobody_is_blamed(self) -> None:
        assert not [event for event in self.peers.seen if isinstance(event, Misbehaved)]
        assert not [e for e in self.peers.answers if isinstance(e, h2.events.ConnectionTerminated)]

    def teardown(self) -> None:
        self.peers.server.go_on()
        self.peers.client.update_settings({4: 1 << 30})
        self.peers.client.increment_flow_control_window(1 << 29)
        self.echo()
        for stream_id, data in self.sent.items():
            assert self.peers.data(stream_id) == data
        self.peers.server.lose()
        assert self.peers.budget.taken == 0


Conversation.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
test_a_long_conversation_echoes_what_was_said = Conversation.TestCase
