"""Every sequence of up to five sample events, in each body mode."""

import itertools

import pytest

from picker.extproc.conversation import Conversation
from picker.extproc.events import (
    BodyMode,
    Closed,
    Cut,
    DeadlinePassed,
    Event,
    NoRoom,
    NotPicked,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseHeaders,
)
from tests.protocol.invariants import Judge

HEADERS = {":method": "POST"}


def samples(mode: BodyMode) -> list[Event]:
    return [
        RequestHeaders(HEADERS, request_mode=mode, body_comes_unasked=True),
        RequestBody(b"abc", end_of_stream=False),
        RequestBody(b"de", end_of_stream=True),
        RequestTrailers(),
        ResponseHeaders(200),
        NotPicked(503, "none", "None."),
        Cut(NotPicked(429, "preempted", "Later.")),
        DeadlinePassed(),
        NoRoom(),
        Closed(),
    ]


def conversations(mode: BodyMode, longest: int) -> list[list[Event]]:
    """All sequences; each `Picked` in one carries a placement of its own, as in reality."""
    kinds: list[Event | None] = [*samples(mode), None]
    orders = (order for length in range(1, longest + 1) for order in itertools.product(kinds, repeat=length))
    return [
        [kind or Picked(("a:1",), "p") for kind in order]
        for order in orders
        if order.count(None) <= 1  # one Pick has one answer
    ]


@pytest.mark.parametrize("mode", BodyMode)
def test_whatever_the_order_the_invariants_hold(mode: BodyMode) -> None:
    for events in conversations(mode, 5 if mode is BodyMode.FULL_DUPLEX else 4):
        Judge(Conversation).feed(events)
