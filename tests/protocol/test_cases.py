import pytest
from hypothesis import given
from hypothesis import strategies as st

from picker.extproc.actions import SendRefusal, SendResponseHeadersContinue
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import TRANSITIONS, Conversation, Settings, State
from picker.extproc.events import Picked, RequestBody, RequestHeaders, ResponseHeaders
from picker.extproc.pieces import cut
from tests.protocol.cases import CASES, POST, TWO, Script

SETTINGS = Settings(body_timeout_s=30.0, max_body_bytes=1 << 20, longest_pick_s=35.0)


@pytest.mark.parametrize("script", CASES.values(), ids=CASES.keys())
def test_the_script_is_followed(script: Script) -> None:
    conversation = Conversation(SETTINGS, ByteBudget(1 << 30))
    for at, event, expected in script:
        assert conversation.receive(event, at) == expected, f"at {at}: {event}"


def test_every_row_of_the_table_is_in_some_script() -> None:
    seen = set()
    for script in CASES.values():
        conversation = Conversation(SETTINGS, ByteBudget(1 << 30))
        for at, event, _ in script:
            seen.add((conversation.state, type(event)))
            conversation.receive(event, at)
    rare = {
        (State.HEADERS, "Closed"),
        (State.BODY, "Closed"),
        (State.PICK, "RequestTrailers"),
    }
    missing = {(state, kind.__name__) for state, kind in TRANSITIONS if (state, kind) not in seen}
    assert missing == rare


def test_bodies_that_wait_are_bounded_over_all_conversations() -> None:
    budget = ByteBudget(10)
    first, second = Conversation(SETTINGS, budget), Conversation(SETTINGS, budget)
    for one in (first, second):
        one.receive(RequestHeaders(POST), 0.0)
    first.receive(RequestBody(bytes(8), end_of_stream=False), 0.0)
    actions = second.receive(RequestBody(bytes(8), end_of_stream=False), 0.0)
    assert [a for a in actions if isinstance(a, SendRefusal)] == [
        SendRefusal(429, "picker-busy", "Too many request bytes are waiting. Please try again later.", retry_after_s=1)
    ]
    assert budget.taken == 8


def test_the_served_endpoint_is_revealed_only_if_asked_for() -> None:
    for header in ("", "x-picker-endpoint"):
        conversation = Conversation(Settings(reveal_header=header), ByteBudget(1 << 20))
        conversation.receive(RequestHeaders({}, True), 0.0)
        conversation.receive(Picked(TWO, "p"), 0.0)
        actions = conversation.receive(ResponseHeaders(200, TWO[1]), 0.0)
        assert actions[-1] == SendResponseHeadersContinue(header, TWO[1])


def test_why_is_told_with_the_response_it_belongs_to() -> None:
    conversation = Conversation(Settings(), ByteBudget(1 << 20))
    conversation.receive(RequestHeaders({}, True), 0.0)
    conversation.receive(Picked(TWO, "p", reason="cost=1"), 0.0)
    assert conversation.receive(ResponseHeaders(200, ""), 0.0)[-1] == SendResponseHeadersContinue(decision="cost=1")


@given(st.integers(0, 200_000))
def test_pieces_join_to_the_whole_and_only_the_last_is_last(size: int) -> None:
    data = bytes(size)
    pieces = list(cut(data))
    assert b"".join(piece for piece, _ in pieces) == data
    assert [is_last for _, is_last in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece) <= 62_000 for piece, _ in pieces)
