"""Hostile peers: what each of them does, how it is counted, and what it costs the peer and nobody else."""

from __future__ import annotations

import pytest
from hpack import Encoder

from picker.extproc.budget import ByteBudget
from picker.transport.connection import Connection
from picker.transport.errors import ErrorCode, Reason, Status
from picker.transport.events import Ended, HalfClosed, Misbehaved, NoRoom
from picker.transport.floods import Bucket
from picker.transport.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    PADDED,
    PREFACE,
    FrameType,
    Setting,
    frame,
    settings,
    window_update,
)
from picker.transport.limits import Limits
from tests.unit.http2_peer import HEADERS, Raw, block, prefixed

CALM, PROTOCOL = ErrorCode.ENHANCE_YOUR_CALM, ErrorCode.PROTOCOL_ERROR
FEW = Limits(control_frames_per_s=10, resets_per_s=10, max_streams=5, max_header_bytes=4096, max_message_bytes=1000)


def opened(stream_id: int) -> bytes:
    return frame(FrameType.HEADERS, END_HEADERS, stream_id, block())


def reset(stream_id: int) -> bytes:
    return frame(FrameType.RST_STREAM, 0, stream_id, b"\0\0\0\x08")


def bomb() -> bytes:
    """One large header in the dynamic table, and thousands of references to it."""
    encoder = Encoder()
    return encoder.encode([("x-bomb", "a" * 3900)]) + encoder.encode([("x-bomb", "a" * 3900)]) * 3000


ENDS_CONNECTION: dict[str, tuple[bytes, Reason, ErrorCode]] = {
    "rapid reset": (b"".join(opened(n) + reset(n) for n in range(1, 300, 2)), Reason.RAPID_RESET, CALM),
    "ping flood": (frame(FrameType.PING, 0, 0, b"12345678") * 200, Reason.CONTROL_FLOOD, CALM),
    "settings flood": (frame(FrameType.SETTINGS, 0, 0) * 200, Reason.CONTROL_FLOOD, CALM),
    "priority flood": (frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\x10") * 200, Reason.CONTROL_FLOOD, CALM),
    "empty data": (opened(1) + frame(FrameType.DATA, 0, 1) * 200, Reason.CONTROL_FLOOD, CALM),
    "resets of nothing": (opened(1) + reset(1) * 200, Reason.CONTROL_FLOOD, CALM),
    "continuation flood": (
        frame(FrameType.HEADERS, 0, 1, block()) + frame(FrameType.CONTINUATION, 0, 1) * 50,
        Reason.CONTINUATION_FLOOD,
        CALM,
    ),
    "headers without end": (
        frame(FrameType.HEADERS, 0, 1, b"\0" * 4000) + frame(FrameType.CONTINUATION, 0, 1, b"\0" * 4000),
        Reason.HEADERS_TOO_LARGE,
        CALM,
    ),
    "headers of one huge frame": (
        frame(FrameType.HEADERS, END_HEADERS, 1, b"\0" * 16_000),
        Reason.HEADERS_TOO_LARGE,
        CALM,
    ),
    "a table that is larger than the one we have": (
        frame(FrameType.HEADERS, END_HEADERS, 1, b"\x3f\xe1\xff\x03" + block()),
        Reason.COMPRESSION,
        ErrorCode.COMPRESSION_ERROR,
    ),
    "headers that are noise": (
        frame(FrameType.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff\xff"),
        Reason.COMPRESSION,
        ErrorCode.COMPRESSION_ERROR,
    ),
    "huge frame": (b"\xff\xff\xff\0\0\0\0\0\1", Reason.FRAME_TOO_LARGE, ErrorCode.FRAME_SIZE_ERROR),
    "garbage": (b"\x00\x00\x04garbage" * 20, Reason.FRAME_TOO_LARGE, ErrorCode.FRAME_SIZE_ERROR),
    "window beyond all bounds": (
        window_update(0, 2**31 - 1),
        Reason.FLOW_CONTROL,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "window of nothing": (window_update(0, 0), Reason.PROTOCOL, PROTOCOL),
    "initial window beyond all bounds": (
        settings({Setting.INITIAL_WINDOW_SIZE: 2**31}),
        Reason.FLOW_CONTROL,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
    "frame size below the least": (settings({Setting.MAX_FRAME_SIZE: 100}), Reason.PROTOCOL, PROTOCOL),
    "settings that are cut off": (
        frame(FrameType.SETTINGS, 0, 0, b"\0\0\0"),
        Reason.PROTOCOL,
        ErrorCode.FRAME_SIZE_ERROR,
    ),
    "settings of a stream": (frame(FrameType.SETTINGS, 0, 1), Reason.PROTOCOL, PROTOCOL),
    "acknowledged settings with content": (frame(FrameType.SETTINGS, ACK, 0, b"\0" * 6), Reason.PROTOCOL, PROTOCOL),
    "short ping": (frame(FrameType.PING, 0, 0, b"1"), Reason.PROTOCOL, PROTOCOL),
    "short reset": (frame(FrameType.RST_STREAM, 0, 1, b"1"), Reason.PROTOCOL, ErrorCode.FRAME_SIZE_ERROR),
    "short window": (frame(FrameType.WINDOW_UPDATE, 0, 0, b"1"), Reason.PROTOCOL, ErrorCode.FRAME_SIZE_ERROR),
    "data of no stream": (frame(FrameType.DATA, 0, 0, b"x"), Reason.PROTOCOL, PROTOCOL),
    "data of a stream that never began": (frame(FrameType.DATA, 0, 7, b"x"), Reason.PROTOCOL, PROTOCOL),
    "reset of a stream that never began": (reset(7), Reason.PROTOCOL, PROTOCOL),
    "headers of a server's stream": (opened(2), Reason.PROTOCOL, PROTOCOL),
    "headers between headers": (frame(FrameType.HEADERS, 0, 1, block()) + opened(3), Reason.PROTOCOL, PROTOCOL),
    "a continuation of nothing": (frame(FrameType.CONTINUATION, 0, 1), Reason.PROTOCOL, PROTOCOL),
    "a push": (frame(FrameType.PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\2" + block()), Reason.PROTOCOL, PROTOCOL),
    "more padding than frame": (opened(1) + frame(FrameType.DATA, PADDED, 1, b"\xff12"), Reason.PROTOCOL, PROTOCOL),
}


@pytest.mark.parametrize("name", ENDS_CONNECTION)
def test_the_connection_ends_and_says_why(name: str) -> None:
    data, reason, code = ENDS_CONNECTION[name]
    raw = Raw(FEW)
    raw.receive(data)
    assert raw.misdeeds[-1] is reason
    assert raw.connection.is_over
    *_, (kind, _, _, payload) = raw.output()
    assert kind == FrameType.GOAWAY
    assert int.from_bytes(payload[4:8], "big") == code
    assert raw.budget.taken == 0
    assert not raw.connection.streams


def test_a_header_bomb_is_not_unpacked() -> None:
    connection = Connection(Limits(), ByteBudget(0), 0.0)
    # Before the peer has heard that there is no table.
    connection.receive(PREFACE + frame(FrameType.SETTINGS, 0, 0), 0.0)
    events = connection.receive(frame(FrameType.HEADERS, END_HEADERS, 1, bomb()), 0.0)
    assert events == [Misbehaved(Reason.HEADERS_TOO_LARGE)]
    assert connection.is_over


def test_a_peer_that_knows_that_there_is_no_table_cannot_use_one() -> None:
    raw = Raw()
    encoder = Encoder()
    headers = [*HEADERS, ("x-kept", "1")]
    raw.receive(frame(FrameType.HEADERS, END_HEADERS, 1, encoder.encode(headers)))
    assert raw.misdeeds == []
    raw.receive(frame(FrameType.HEADERS, END_HEADERS, 3, encoder.encode(headers)))
    assert raw.misdeeds == [Reason.COMPRESSION]


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 24, b"PRI * HTTP/2.0\r\nX"])
def test_what_is_not_http2_is_found_at_its_first_bytes(first: bytes) -> None:
    connection = Connection(Limits(), ByteBudget(0), 0.0)
    assert connection.receive(first, 0.0) == [Misbehaved(Reason.NOT_HTTP2)]
    assert connection.is_over


def test_the_first_frame_must_be_settings() -> None:
    connection = Connection(Limits(), ByteBudget(0), 0.0)
    assert connection.receive(PREFACE + frame(FrameType.PING, 0, 0, b"12345678"), 0.0) == [Misbehaved(Reason.PROTOCOL)]


ENDS_CALL: dict[str, tuple[bytes, Reason, Status]] = {
    "a message that is too large": (prefixed(b"x" * 1001), Reason.MESSAGE_TOO_LARGE, Status.RESOURCE_EXHAUSTED),
    "one that only says so": (b"\0\xff\xff\xff\xff", Reason.MESSAGE_TOO_LARGE, Status.RESOURCE_EXHAUSTED),
    "a compressed message": (prefixed(b"x", True), Reason.COMPRESSED, Status.UNIMPLEMENTED),
}


@pytest.mark.parametrize("name", ENDS_CALL)
@pytest.mark.parametrize("cut", [1, 1 << 20])
def test_the_call_ends_with_a_status_and_the_others_go_on(name: str, cut: int) -> None:
    data, reason, status = ENDS_CALL[name]
    raw = Raw(FEW)
    other = raw.open(1)
    stream = raw.open(3)
    for start in range(0, len(data), cut):
        if 3 in raw.connection.streams:
            raw.receive(frame(FrameType.DATA, 0, 3, data[start : start + cut]))
    assert raw.misdeeds == [reason]
    assert raw.events[-1] == Ended(stream)
    block_of_trailers = next(payload for kind, _, sid, payload in raw.output() if (kind, sid) == (1, 3))
    assert b"grpc-status" in block_of_trailers
    assert str(int(status)).encode() in block_of_trailers
    assert b"grpc-accept-encoding" in block_of_trailers
    assert list(raw.connection.streams.values()) == [other]
    assert raw.budget.taken == 0


RESETS_STREAM: dict[str, tuple[bytes, Reason, ErrorCode]] = {
    "half a message": (
        frame(FrameType.DATA, END_STREAM, 1, prefixed(b"xyz")[:-1]),
        Reason.MESSAGE_CUT_OFF,
        PROTOCOL,
    ),
    "data after the end": (
        frame(FrameType.DATA, END_STREAM, 1) + frame(FrameType.DATA, 0, 1, b"x"),
        Reason.PROTOCOL,
        ErrorCode.STREAM_CLOSED,
    ),
    "trailers that do not end": (opened(1), Reason.PROTOCOL, PROTOCOL),
    "a window of nothing": (window_update(1, 0), Reason.PROTOCOL, PROTOCOL),
    "a window beyond all bounds": (
        window_update(1, 2**31 - 1),
        Reason.FLOW_CONTROL,
        ErrorCode.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize("name", RESETS_STREAM)
def test_the_stream_is_reset_and_the_others_go_on(name: str) -> None:
    data, reason, code = RESETS_STREAM[name]
    raw = Raw(FEW)
    stream = raw.open(1)
    other = raw.open(3)
    raw.receive(data)
    assert raw.misdeeds == [reason]
    assert [event for event in raw.events if isinstance(event, Ended)] == [Ended(stream)]
    assert (FrameType.RST_STREAM, 0, 1, code.to_bytes(4, "big")) in raw.output()
    assert list(raw.connection.streams.values()) == [other]


def test_more_than_the_window_resets_the_stream() -> None:
    raw = Raw(Limits(stream_window_bytes=1000))
    raw.connection.hold(raw.open(1))
    raw.receive(frame(FrameType.DATA, 0, 1, prefixed(b"x" * 900)))
    raw.receive(frame(FrameType.DATA, 0, 1, prefixed(b"x" * 900)))
    assert raw.misdeeds == [Reason.FLOW_CONTROL]


def test_one_stream_too_many_is_refused_so_that_it_may_be_tried_again() -> None:
    raw = Raw(FEW)
    for stream_id in range(1, 11, 2):
        raw.open(stream_id)
    raw.output()
    raw.receive(opened(11))
    assert raw.misdeeds == [Reason.TOO_MANY_STREAMS]
    assert raw.output() == [(FrameType.RST_STREAM, 0, 11, ErrorCode.REFUSED_STREAM.to_bytes(4, "big"))]
    raw.connection.finish(raw.connection.streams[1])
    raw.open(13)


def test_unfinished_messages_count_against_the_budget_of_all() -> None:
    raw = Raw(budget=ByteBudget(1000))
    raw.open(1, prefixed(b"x" * 2000)[:600])
    second = raw.open(3)
    raw.receive(frame(FrameType.DATA, 0, 3, prefixed(b"x" * 2000)[:600]))
    assert raw.misdeeds == [Reason.NO_ROOM]
    assert raw.events[-1] == NoRoom(second)
    assert raw.budget.taken == 600
    raw.receive(frame(FrameType.DATA, END_STREAM, 3, b"x" * 1405))
    assert raw.events[-1] == HalfClosed(second)
    raw.output()
    raw.connection.send(second, b"sorry")
    raw.connection.finish(second, Status.RESOURCE_EXHAUSTED)
    assert [kind for kind, *_ in raw.output()] == [FrameType.HEADERS, FrameType.DATA, FrameType.HEADERS]
    assert raw.budget.taken == 600


def test_unsent_answers_count_against_the_budget_of_all() -> None:
    raw = Raw(budget=ByteBudget(1000))
    stream = raw.open(1)
    raw.connection.send(stream, b"x" * 65_000)
    raw.connection.send(stream, b"x" * 3_000)
    assert [event for event in raw.sweep() if isinstance(event, Ended)] == [Ended(stream)]
    assert raw.misdeeds == [Reason.NO_ROOM]
    assert raw.budget.taken == 0


def test_an_answer_that_nobody_reads_is_given_up() -> None:
    raw = Raw(Limits(stall_s=30))
    stream = raw.open(1)
    raw.connection.send(stream, b"x" * 100_000)
    for raw.now in (10.0, 39.0):
        raw.receive(frame(FrameType.PING, 0, 0, b"I live  "))
        assert raw.sweep() == []
    raw.receive(window_update(0, 10) + window_update(1, 10))
    for raw.now in (41.0, 70.0):
        assert raw.sweep() == []
    raw.now = 72.0
    assert raw.sweep() == [Misbehaved(Reason.STALLED), Ended(stream)]
    assert raw.budget.taken == 0


def test_a_peer_that_does_not_greet_is_let_go() -> None:
    connection = Connection(Limits(handshake_s=10), ByteBudget(0), 0.0)
    connection.receive(PREFACE[:5], 9.0)
    assert connection.sweep(9.9) == []
    assert connection.sweep(10.1) == [Misbehaved(Reason.HANDSHAKE_LATE)]
    assert connection.is_over


def test_a_silent_peer_is_asked_for_a_sign_of_life_and_then_let_go() -> None:
    raw = Raw(Limits(keepalive_s=20))
    stream = raw.open(1)
    raw.now = 20.1
    assert raw.sweep() == []
    [(kind, _, _, payload)] = raw.output()
    assert kind == FrameType.PING
    raw.now = 30.0
    raw.receive(frame(FrameType.PING, ACK, 0, payload))
    for raw.now in (49.0, 50.1, 70.0):
        assert raw.sweep() == []
    raw.now = 70.2
    assert raw.sweep() == [Misbehaved(Reason.SILENT), Ended(stream)]


def test_windows_of_one_byte_cost_no_look_at_streams_that_cannot_send() -> None:
    looks = 0

    class Counting(dict):  # type: ignore[type-arg]
        def pop(self, *arguments: object) -> object:
            nonlocal looks
            looks += 1
            return super().pop(*arguments)

    raw = Raw()
    raw.receive(settings({Setting.INITIAL_WINDOW_SIZE: 1}))
    for stream_id in range(1, 2001, 2):
        raw.connection.send(raw.open(stream_id), b"x" * 10)
    raw.connection._outbox._turns = Counting(raw.connection._outbox._turns)
    raw.receive(window_update(0, 1) * 100)
    assert looks == 0
    assert not raw.connection._outbox._turns


def test_envoys_resets_after_our_trailers_are_no_flood() -> None:
    raw = Raw(FEW)
    for stream_id in range(1, 2001, 2):
        stream = raw.open(stream_id)
        raw.connection.send(stream, b"x")
        raw.connection.finish(stream)
        raw.receive(reset(stream_id))
    assert raw.misdeeds == []


def test_a_crowd_that_leaves_is_no_rapid_reset() -> None:
    raw = Raw()
    for stream_id in range(1, 3001, 2):
        raw.open(stream_id)
    raw.receive(b"".join(reset(stream_id) for stream_id in range(1, 3001, 2)))
    assert raw.misdeeds == []


def test_a_bucket_holds_ten_seconds_worth_and_fills_again() -> None:
    bucket = Bucket(5, 0.0)
    assert all(bucket.take(0.0) for _ in range(50))
    assert not bucket.take(0.0)
    assert bucket.take(1.0)
