"""A test of the tests: each planted fault must be found by the short conversations."""

from typing import Any

import pytest

from picker.extproc.actions import Action, Release, SendBodyPiece
from picker.extproc.conversation import Conversation
from picker.extproc.events import BodyMode, Closed, Event, Picked
from tests.protocol.invariants import Broken, Judge
from tests.protocol.test_every_short_conversation import conversations


class AnswersTwice(Conversation):
    def receive(self, event: Event, now: float) -> list[Action]:
        actions = super().receive(event, now)
        return actions * 2 if isinstance(event, Picked) else actions


class LosesAPiece(Conversation):
    def receive(self, event: Event, now: float) -> list[Action]:
        actions = super().receive(event, now)
        return [a for a in actions if not (isinstance(a, SendBodyPiece) and len(a.data) > 3)]


class NeverReleases(Conversation):
    def receive(self, event: Event, now: float) -> list[Action]:
        return [a for a in super().receive(event, now) if not isinstance(a, Release)]


class ReleasesTwice(Conversation):
    def receive(self, event: Event, now: float) -> list[Action]:
        actions = super().receive(event, now)
        return actions * 2 if isinstance(event, Closed) else actions


class KeepsItsBudget(Conversation):
    def _drop_body(self) -> Any:
        pieces, self._pieces = self._pieces, []
        self._held = 0
        return pieces


@pytest.mark.parametrize("fault", [AnswersTwice, LosesAPiece, NeverReleases, ReleasesTwice, KeepsItsBudget])
def test_the_fault_is_found(fault: type[Conversation]) -> None:
    with pytest.raises(Broken):
        for events in conversations(BodyMode.FULL_DUPLEX, 4):
            Judge(fault).feed(events)
