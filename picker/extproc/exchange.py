"""A conversation and what stands around it: who picks, who keeps the books, who counts, and the one timer."""

from __future__ import annotations

from typing import Any, Protocol, get_args

from picker.extproc.actions import Action, Answered, Finish, FirstByte, Ignored, Pick, Release, Send, StartTimer
from picker.extproc.conversation import Conversation
from picker.extproc.events import Closed, NotPicked, Picked

SENDS = frozenset(get_args(Send))
"""The kinds of actions that are messages."""


class Answers(Protocol):
    """Who makes the picks and keeps the books (`picker.picking.Picker`)."""

    async def pick(self, wanted: Pick) -> Picked | NotPicked: ...  # noqa: D102
    def first_byte(self, placement: Any, status: int, served: str) -> None: ...  # noqa: D102
    def answered(self, placement: Any, tail: bytes) -> None: ...  # noqa: D102
    def release(self, placement: Any) -> None: ...  # noqa: D102


class Counts(Protocol):
    """Who counts (`picker.telemetry.metrics.Metrics`)."""

    def ignored(self, event: str, state: str) -> None: ...  # noqa: D102
    def refused(self, reason: str) -> None: ...  # noqa: D102


class Exchange:
    """One stream's, whatever carries it. `deadline` is when `DeadlinePassed` is due; `is_finished` after `Finish`."""

    __slots__ = ("answers", "conversation", "counts", "deadline", "is_finished")

    def __init__(self, answers: Answers, counts: Counts, conversation: Conversation):
        self.answers = answers
        self.counts = counts
        self.conversation = conversation
        self.deadline: float | None = None
        self.is_finished = False

    def note(self, action: Action) -> None:
        """Does what an action wants that needs neither the stream nor a pick."""
        match action:
            case StartTimer(at=at):
                self.deadline = at
            case FirstByte(placement=placement, status=status, served=served):
                self.answers.first_byte(placement, status, served)
            case Answered(placement=placement, tail=tail):
                self.answers.answered(placement, tail)
            case Release(placement=placement):
                self.answers.release(placement)
            case Ignored(event=kind, state=state):
                self.counts.ignored(kind.__name__, state)
            case Finish():
                self.is_finished = True
                # Whoever refuses a pick counts it.
                if self.conversation.refusal:
                    self.counts.refused(self.conversation.refusal)

    def close(self, now: float) -> None:
        """However the stream has ended, the conversation learns that it has."""
        for action in self.conversation.receive(Closed(), now):
            self.note(action)
