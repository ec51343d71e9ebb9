"""The protocol without a socket, against a client by another hand."""

from __future__ import annotations

import h2.errors
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.extproc.budget import ByteBudget
from picker.transport.errors import Reason, Status
from picker.transport.events import Ended, HalfClosed, Misbehaved, Opened
from picker.transport.frames import ACK, END_HEADERS, END_STREAM, PADDED, PRIORITY, FrameType, frame
from picker.transport.limits import Limits
from tests.unit.http2_peer import HEADERS, PATH, Peers, Raw, block, parsed, prefixed


def test_a_call_from_its_beginning_to_its_end() -> None:
    peers = Peers()
    stream_id = peers.request(b"hello", b"", b"world")
    opened, *_, half_closed = peers.of(stream_id)
    assert isinstance(opened, Opened)
    assert opened.head.path == PATH
    assert isinstance(half_closed, HalfClosed)
    assert peers.received(stream_id) == [b"hello", b"", b"world"]
    peers.server.send(opened.stream, b"yes")
    peers.server.finish(opened.stream)
    peers.talk()
    [response] = peers.answered(h2.events.ResponseReceived, stream_id)
    assert (b":status", b"200") in response.headers
    assert peers.data(stream_id) == prefixed(b"yes")
    assert peers.trailers(stream_id) == {"grpc-status": "0"}
    assert peers.answered(h2.events.StreamEnded, stream_id)
    assert not peers.server.streams


def test_a_call_that_has_no_answer_but_its_status() -> None:
    peers = Peers()
    stream_id = peers.request(b"x")
    peers.server.finish(peers.stream(stream_id), Status.INTERNAL, "50 % ü\n")
    peers.talk()
    assert peers.trailers(stream_id)["grpc-status"] == "13"
    assert peers.trailers(stream_id)["grpc-message"] == "50 %25 %C3%BC%0A"


def test_a_call_that_we_end_first_is_reset_without_blame() -> None:
    peers = Peers()
    stream_id = peers.request(b"x", end=False)
    peers.server.send(peers.stream(stream_id), b"no")
    peers.server.finish(peers.stream(stream_id))
    peers.talk()
    [reset] = peers.answered(h2.events.StreamReset, stream_id)
    assert reset.error_code == h2.errors.ErrorCodes.NO_ERROR
    assert peers.trailers(stream_id)["grpc-status"] == "0"


@given(cut=st.integers(1, 40), sizes=st.lists(st.integers(0, 60), max_size=5))
def test_however_the_bytes_arrive_the_messages_are_the_same(cut: int, sizes: list[int]) -> None:
    messages = [bytes([number]) * size for number, size in enumerate(sizes)]
    peers = Peers()
    stream_id = peers.client.get_next_available_stream_id()
    peers.client.send_headers(stream_id, HEADERS)
    stuff = b"".join(map(prefixed, messages))
    for start in range(0, len(stuff), 7):
        peers.client.send_data(stream_id, stuff[start : start + 7])
    peers.client.end_stream(stream_id)
    peers.talk(cut)
    assert peers.received(stream_id) == messages
    assert isinstance(peers.of(stream_id)[-1], HalfClosed)
    assert peers.budget.taken == 0


def test_a_message_of_megabytes_comes_in_through_small_windows() -> None:
    peers = Peers(Limits(stream_window_bytes=65_535))
    message = bytes(range(256)) * 20_000
    stream_id = peers.request(end=False)
    rest = prefixed(message)
    while rest:
        size = min(len(rest), peers.client.local_flow_control_window(stream_id), 16_384)
        assert size > 0, "our connection allows no more"
        peers.client.send_data(stream_id, rest[:size])
        rest = rest[size:]
        peers.talk()
    assert peers.received(stream_id) == [message]
    assert peers.budget.taken == 0


def test_an_answer_waits_for_the_peers_windows_and_its_trailers_with_it() -> None:
    peers = Peers()
    stream_id = peers.request(b"x")
    message = b"y" * 200_000
    peers.server.send(peers.stream(stream_id), message)
    peers.server.finish(peers.stream(stream_id))
    peers.talk()
    assert len(peers.data(stream_id)) == 65_535
    assert peers.trailers(stream_id).get("grpc-status") is None
    assert peers.budget.taken == len(prefixed(message)) - 65_535
    peers.client.increment_flow_control_window(1_000_000)
    peers.talk()
    assert len(peers.data(stream_id)) == 65_535, "its own window is still shut"
    peers.client.increment_flow_control_window(1_000_000, stream_id)
    peers.talk()
    assert peers.data(stream_id) == prefixed(message)
    assert peers.trailers(stream_id)["grpc-status"] == "0"
    assert peers.budget.taken == 0
    assert not peers.server.streams


def test_a_window_for_all_streams_frees_those_that_wait() -> None:
    peers = Peers()
    stream_id = peers.request(b"x")
    peers.client.increment_flow_control_window(1_000_000)
    peers.server.send(peers.stream(stream_id), b"y" * 100_000)
    peers.talk()
    assert len(peers.data(stream_id)) == 65_535
    peers.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 500_000})
    peers.talk()
    assert len(peers.data(stream_id)) == 100_005


def test_a_long_answer_does_not_hold_up_a_short_one() -> None:
    peers = Peers()
    long, short = peers.request(b"x"), peers.request(b"x")
    for stream_id in (long, short):
        peers.client.increment_flow_control_window(10_000_000, stream_id)
    peers.server.send(peers.stream(long), b"l" * 1_000_000)
    peers.server.send(peers.stream(short), b"s" * 10)
    peers.talk()
    assert peers.data(short) == b"", "the connection's window is used up"
    peers.client.increment_flow_control_window(40_000)
    peers.talk()
    assert peers.data(short) == prefixed(b"s" * 10)


def test_what_the_socket_does_not_take_waits_and_is_accounted_for() -> None:
    peers = Peers()
    stream_id = peers.request(b"x")
    peers.server.pause()
    peers.server.send(peers.stream(stream_id), b"y")
    peers.talk()
    assert peers.data(stream_id) == b""
    assert peers.budget.taken == len(prefixed(b"y"))
    peers.server.go_on()
    peers.talk()
    assert peers.data(stream_id) == prefixed(b"y")
    assert peers.budget.taken == 0


def test_a_stream_that_is_held_gets_no_more_window_until_it_is_resumed() -> None:
    peers = Peers(Limits(stream_window_bytes=65_535))
    stream_id = peers.request(end=False)
    peers.server.hold(peers.stream(stream_id))
    for _ in range(3):
        peers.client.send_data(stream_id, prefixed(b"x" * 16_000))
    peers.talk()
    window = peers.client.local_flow_control_window(stream_id)
    assert window < 20_000
    peers.server.resume(peers.stream(stream_id))
    peers.talk()
    assert peers.client.local_flow_control_window(stream_id) == 65_535


def test_a_ping_is_answered() -> None:
    peers = Peers()
    peers.client.ping(b"12345678")
    peers.talk()
    assert any(isinstance(e, h2.events.PingAckReceived) and e.ping_data == b"12345678" for e in peers.answers)


def test_padding_and_priority_change_nothing() -> None:
    raw = Raw()
    padded = b"\x03" + b"\0\0\0\0\x10" + block() + b"\0\0\0"
    raw.receive(frame(FrameType.HEADERS, END_HEADERS | PADDED | PRIORITY, 1, padded))
    raw.receive(frame(FrameType.PRIORITY, 0, 1, b"\0\0\0\0\x10"))
    [event] = raw.receive(frame(FrameType.DATA, PADDED, 1, b"\x02" + prefixed(b"hi") + b"\0\0"))
    assert event[1] == b"hi"
    assert raw.misdeeds == []


def test_headers_in_several_frames_are_one_block() -> None:
    raw = Raw()
    whole = block()
    raw.receive(frame(FrameType.HEADERS, END_STREAM, 1, whole[:3]))
    raw.receive(frame(FrameType.CONTINUATION, 0, 1, whole[3:9]))
    opened, half_closed = raw.receive(frame(FrameType.CONTINUATION, END_HEADERS, 1, whole[9:]))
    assert isinstance(opened, Opened)
    assert isinstance(half_closed, HalfClosed)


def test_frames_of_unknown_types_and_settings_are_ignored() -> None:
    raw = Raw()
    raw.receive(frame(FrameType.SETTINGS, 0, 0, b"\0\x99\0\0\0\x01"))
    data = bytearray(frame(FrameType.PING, 0, 7, b"whatever"))
    data[3] = 0x42
    assert raw.receive(bytes(data)) == []
    assert [kind for kind, *_ in raw.output()] == [FrameType.SETTINGS]


def test_the_clients_own_trailers_end_its_half() -> None:
    raw = Raw()
    raw.open(1, prefixed(b"x"))
    [event] = raw.receive(frame(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, block([("x-sum", "1")])))
    assert isinstance(event, HalfClosed)


def test_a_proxys_dynamic_table_works_until_it_knows_that_there_is_none() -> None:
    peers = Peers()
    for _ in range(3):
        stream_id = peers.request(b"x", more=[("x-same", "again")])
        assert peers.received(stream_id) == [b"x"]
    assert not [event for event in peers.seen if isinstance(event, Misbehaved)]


@pytest.mark.parametrize(
    ("changes", "status"),
    [({":method": "GET"}, "405"), ({"content-type": "text/html"}, "415"), ({"content-type": None}, "415")],
)
def test_what_is_no_grpc_gets_an_http_status(changes: dict[str, str | None], status: str) -> None:
    peers = Peers()
    stream_id = peers.client.get_next_available_stream_id()
    headers = [(k, changes.get(k, v)) for k, v in HEADERS]
    peers.client.send_headers(stream_id, [(k, v) for k, v in headers if v is not None], end_stream=True)
    peers.talk()
    [response] = peers.answered(h2.events.ResponseReceived, stream_id)
    assert (b":status", status.encode()) in response.headers
    assert peers.seen == []
    assert not peers.server.streams


@pytest.mark.parametrize(
    "headers",
    [
        [*HEADERS, ("connection", "close")],
        [*HEADERS, ("te", "gzip")],
        [*HEADERS, ("X-Upper", "1")],
        [("content-type", "application/grpc"), *HEADERS],
        [*HEADERS[:2], *HEADERS],
        [pair for pair in HEADERS if pair[0] != ":path"],
        [*HEADERS[:5], (":strange", "1")],
        [],
    ],
)
def test_malformed_headers_reset_their_stream_only(headers: list[tuple[str, str]]) -> None:
    raw = Raw()
    raw.receive(frame(FrameType.HEADERS, END_HEADERS, 1, block(headers)))
    assert raw.misdeeds == [Reason.PROTOCOL]
    assert [kind for kind, *_ in raw.output()] == [FrameType.RST_STREAM]
    raw.open(3)
    assert not raw.connection.is_over


@pytest.mark.parametrize(
    ("value", "seconds"), [("100m", 0.1), ("2H", 7200), ("5S", 5), ("7M", 420), ("1u", 1e-6), ("10n", 1e-8)]
)
def test_a_timeout_is_read_in_all_its_units(value: str, seconds: float) -> None:
    peers = Peers()
    opened = peers.of(peers.request(more=[("grpc-timeout", value)]))[0]
    assert isinstance(opened, Opened)
    assert opened.head.timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["", "5", "S", "-1S", "123456789S", "1.5S", "٣S"])
def test_a_timeout_that_makes_no_sense_ends_the_call(value: str) -> None:
    raw = Raw()
    raw.receive(frame(FrameType.HEADERS, END_HEADERS, 1, block([*HEADERS, ("grpc-timeout", value)])))
    assert raw.events == []
    [(kind, flags, *_), _reset] = raw.output()
    assert (kind, flags) == (FrameType.HEADERS, END_HEADERS | END_STREAM)


def test_a_drain_serves_what_is_on_its_way_and_nothing_later() -> None:
    raw = Raw()
    stream = raw.open(1)
    raw.connection.drain(raw.now)
    (goaway, ping) = raw.output()
    assert goaway[0] == FrameType.GOAWAY
    assert int.from_bytes(goaway[3][:4], "big") == 2**31 - 1
    late = raw.open(3)
    raw.receive(frame(FrameType.PING, ACK, 0, ping[3]))
    [goaway] = raw.output()
    assert int.from_bytes(goaway[3][:4], "big") == 3
    assert raw.receive(frame(FrameType.HEADERS, END_HEADERS, 5, block())) == []
    assert raw.receive(frame(FrameType.DATA, 0, 5, prefixed(b"x"))) == []
    for one in (stream, late):
        assert not raw.connection.is_drained
        raw.connection.finish(one)
    assert raw.connection.is_drained


def test_a_drain_does_not_wait_for_a_peer_that_answers_no_pings() -> None:
    raw = Raw()
    raw.connection.drain(raw.now)
    raw.sweep()
    assert not raw.connection.is_drained
    raw.now = 1.1
    raw.sweep()
    assert raw.connection.is_drained


def test_a_connection_that_is_lost_ends_its_calls_once_and_gives_everything_back() -> None:
    raw = Raw()
    raw.open(1, prefixed(b"x" * 1000)[:100])
    stuck = raw.open(3)
    raw.connection.send(stuck, b"y" * 100_000)
    assert raw.budget.taken > 0
    ended = raw.connection.lose()
    assert [type(event) for event in ended] == [Ended, Ended]
    assert raw.budget.taken == 0
    assert raw.connection.lose() == []
    assert raw.receive(frame(FrameType.PING, 0, 0, b"12345678")) == []


def test_a_reset_gives_everything_back() -> None:
    raw = Raw(budget=ByteBudget(1 << 20))
    stream = raw.open(1, prefixed(b"x" * 1000)[:100])
    raw.connection.send(stream, b"y" * 100_000)
    [event] = raw.receive(frame(FrameType.RST_STREAM, 0, 1, b"\0\0\0\x08"))
    assert isinstance(event, Ended)
    assert raw.budget.taken == 0
    raw.connection.send(stream, b"nobody wants it")
    raw.connection.finish(stream)
    assert [kind for kind, *_ in parsed(raw.connection.take_output())].count(FrameType.RST_STREAM) == 0
