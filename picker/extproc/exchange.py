"""A conversation and what stands around it: who picks, who keeps the books, who counts, and the one timer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from picker.extproc.actions import Action, Answered, Finish, FirstByte, Ignored, Pick, Release, StartTimer
from picker.extproc.conversation import Conversation
from picker.extproc.events import Closed, NotPicked, Picked


class Answers(Protocol):
    """Who makes the picks and keeps the books (`picker.picking.Picker`)."""

    async def pick(self, wanted: Pick) -> Picked | NotPicked: ...  # noqa: D102
    def replied(self, placement: Any) -> None: ...  # noqa: D102
    def first_byte(self, placement: Any, status: int, served: str) -> None: ...  # noqa: D102
    def answered(self, placement: Any, tail: bytes) -> None: ...  # noqa: D102
    def release(self, placement: Any, is_unfinished: bool) -> None: ...  # noqa: D102


class Counts(Protocol):
    """Who counts (`picker.telemetry.metrics.Metrics`)."""

    def ignored(self, event: str, state: str) -> None: ...  # noqa: D102
    def refused(self, reason: str) -> None: ...  # noqa: D102


Seen = Counter[Any]
"""How often each kind of event and of action was a message, and each `BodyMode` that of a stream."""


class Exchange:
    """One stream's, whatever carries it. `deadline` is when `DeadlinePassed` is due; `is_finished` after `Finish`."""

    __slots__ = ("answers", "conversation", "counts", "deadline", "is_finished", "seen")

    def __init__(self, answers: Answers, counts: Counts, conversation: Conversation, seen: Seen):
        self.answers = answers
        self.counts = counts
        self.conversation = conversation
        self.seen = seen
        self.deadline: float | None = None
        self.is_finished = False

    def note(self, action: Action) -> None:
        """Does what an action wants, where that needs neither the stream nor a pick."""
        if step := _NOTES.get(type(action)):
            step(self, action)

    def _start_timer(self, action: StartTimer) -> None:
        self.deadline = action.at

    def _first_byte(self, action: FirstByte) -> None:
        self.answers.first_byte(action.placement, action.status, action.served)

    def _answered(self, action: Answered) -> None:
        self.answers.answered(action.placement, action.tail)

    def _release(self, action: Release) -> None:
        self.answers.release(action.placement, action.is_unfinished)

    def _ignored(self, action: Ignored) -> None:
        self.counts.ignored(action.event.__name__, action.state)

    def _finish(self, action: Finish) -> None:
        self.is_finished = True
        # Whoever refuses a pick counts it.
        if self.conversation.refusal:
            self.counts.refused(self.conversation.refusal)

    def replied(self, picked: Picked) -> None:
        """The answer has gone out."""
        if picked.placement is not None:
            self.answers.replied(picked.placement)

    def close(self, now: float) -> None:
        """However the stream has ended, the conversation learns that it has."""
        self.seen[self.conversation.mode] += 1
        for action in self.conversation.receive(Closed(), now):
            self.note(action)


_NOTES: Mapping[type[Any], Callable[[Exchange, Any], None]] = {
    StartTimer: Exchange._start_timer,
    FirstByte: Exchange._first_byte,
    Answered: Exchange._answered,
    Release: Exchange._release,
    Ignored: Exchange._ignored,
    Finish: Exchange._finish,
}
