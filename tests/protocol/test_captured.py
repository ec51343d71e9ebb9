"""Conversations captured from a real Envoy 1.40 (`tests/integration/capture.py`), replayed without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from picker.extproc.actions import Pick, Release
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings, State
from picker.extproc.events import Closed, Event, Picked, RequestHeaders
from picker.extproc.wire.building import build
from picker.extproc.wire.parsing import parse

CAPTURED = json.loads((Path(__file__).parents[1] / "data" / "conversations.json").read_text())
SENDS = "Send"


def replay(messages: list[bytes], endpoints: tuple[str, ...]) -> tuple[list[bytes], Conversation, int]:
    """What we say to these messages, the conversation after them, and how often the placement is released."""
    conversation, said, released = Conversation(Settings(), ByteBudget(1 << 24)), [], 0
    for event in [*map(parse, messages), Closed()]:
        waiting: list[Event] = [event]
        while waiting:
            for action in conversation.receive(waiting.pop(0), 0.0):
                if isinstance(action, Pick):
                    waiting.append(Picked(endpoints, "placement"))
                elif isinstance(action, Release):
                    released += 1
                elif type(action).__name__.startswith(SENDS):
                    said.append(build(action))  # type: ignore[arg-type]
    return said, conversation, released


def endpoints_in(said: list[bytes]) -> tuple[str, ...]:
    from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

    for data in said:
        fields = pb.ProcessingResponse.FromString(data).dynamic_metadata.fields
        if "envoy.lb" in fields:
            value = fields["envoy.lb"].struct_value.fields["x-gateway-destination-endpoint"].string_value
            return tuple(value.split(","))
    return ()


@pytest.mark.parametrize("name", CAPTURED)
def test_the_same_messages_get_the_same_answers(name: str) -> None:
    messages = [bytes.fromhex(data) for direction, data in CAPTURED[name] if direction == "in"]
    answers = [bytes.fromhex(data) for direction, data in CAPTURED[name] if direction == "out"]
    endpoints = endpoints_in(answers)
    said, conversation, released = replay(messages, endpoints)
    assert said == answers
    assert conversation.state is State.ENDED
    assert released == (1 if endpoints else 0)


@pytest.mark.parametrize("name", CAPTURED)
def test_a_captured_conversation_may_break_off_anywhere(name: str) -> None:
    messages = [bytes.fromhex(data) for direction, data in CAPTURED[name] if direction == "in"]
    for length in range(len(messages)):
        _, conversation, released = replay(messages[:length], ("10.0.0.1:8000",))
        assert conversation.state is State.ENDED
        assert released <= 1


def test_the_mode_is_read_from_the_first_message() -> None:
    modes = set()
    for name, conversation in CAPTURED.items():
        first = parse(bytes.fromhex(conversation[0][1]))
        assert isinstance(first, RequestHeaders), name
        modes.add(first.request_mode)
    assert len(modes) == 5
