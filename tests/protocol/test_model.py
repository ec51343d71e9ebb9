"""Long conversations with arbitrary bytes, cuts and strays, in every mode, against a model of a few lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from picker.extproc.actions import Pick, Release, Send, SendBodyPiece
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings, State
from picker.extproc.events import (
    BodyMode,
    Closed,
    Cut,
    DeadlinePassed,
    Event,
    NotPicked,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from picker.extproc.wire.building import build
from tests.protocol.invariants import Judge

HEADERS = st.sampled_from(
    [
        {":method": "POST", ":path": "/v1/chat/completions"},
        {":method": "GET", "upgrade": "websocket"},
        {":method": "POST", "upgrade": "h2c", "content-length": "3"},
        {":method": "CONNECT"},
        {},
    ]
)
MODES = st.sampled_from(BodyMode)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(RequestHeaders, HEADERS, st.booleans(), MODES, st.booleans(), MODES),
    st.builds(RequestBody, st.binary(max_size=4), st.booleans()),
    st.builds(RequestTrailers),
    st.builds(ResponseHeaders, st.integers(0, 599), st.sampled_from(["", "10.0.0.1:1"])),
    st.builds(ResponseBody, st.binary(max_size=4), st.booleans()),
    st.builds(ResponseTrailers),
    st.builds(DeadlinePassed),
    st.builds(Cut, st.just(NotPicked(429, "preempted", "Later."))),
    st.builds(Closed),
    st.builds(Picked, st.just(("a:1", "b:2")), st.just("placement")),
)


@settings(max_examples=1500)
@given(st.lists(EVENTS, max_size=14))
def test_whatever_comes_in_whatever_order_the_invariants_hold(events: list[Event]) -> None:
    # One answer to one Pick: a second `Picked` in a sequence would be a defect of ours, not of a proxy's.
    first = next((i for i, event in enumerate(events) if isinstance(event, Picked)), len(events))
    Judge().feed(e for i, e in enumerate(events) if i <= first or not isinstance(e, Picked))


@given(st.binary(max_size=400_000), st.lists(st.integers(0, 400_000), max_size=12), st.booleans(), st.booleans())
@settings(max_examples=150)
def test_however_a_body_is_cut_the_same_bytes_are_picked_on_and_come_out(
    data: bytes, cuts: list[int], ends_with_trailers: bool, has_empty_end: bool
) -> None:
    conversation = Conversation(Settings(), ByteBudget(1 << 24))
    conversation.receive(RequestHeaders({}, request_mode=BodyMode.FULL_DUPLEX), 0.0)
    ends = sorted({min(cut, len(data)) for cut in cuts} | {len(data)})
    pieces = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)] + [b""] * has_empty_end
    actions = [
        action
        for number, piece in enumerate(pieces, 1)
        for action in conversation.receive(RequestBody(piece, number == len(pieces) and not ends_with_trailers), 0.0)
    ]
    if ends_with_trailers:
        actions += conversation.receive(RequestTrailers(), 0.0)
    [pick] = [action for action in actions if isinstance(action, Pick)]
    assert pick.body == data
    said = conversation.receive(Picked(("a:1",), "p"), 0.0)
    out = [action for action in said if isinstance(action, SendBodyPiece)]
    assert b"".join(piece.data for piece in out) == data
    assert [piece.end_of_stream for piece in out] == [False] * (len(out) - 1) + [not ends_with_trailers]
    assert conversation.receive(Closed(), 0.0)[-1] == Release("p")
    assert conversation.state is State.ENDED
    assert all(build(action) is not None for action in said if isinstance(action, Send))
