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


class CutsWhatHasBegun(Conversation):
    def receive(self, event: Event, now: float) -> list[Action]:
        self._has_begun = False
        return super().receive(event, now)


FAULTS = [AnswersTwice, LosesAPiece, NeverReleases, ReleasesTwice, KeepsItsBudget, CutsWhatHasBegun]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found(fault: type[Conversation]) -> None:
    with pytest.raises(Broken):
        # Where there is no body to wait for, four events reach into the response.
        for mode in (BodyMode.FULL_DUPLEX, BodyMode.NONE):
            for events in conversations(mode, 4):
                Judge(fault).feed(events)
