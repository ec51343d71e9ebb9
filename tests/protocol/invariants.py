"""What must hold in any order of events, checked action by action. Used on the machine and on broken copies of it."""

from collections.abc import Iterable

from picker.extproc.actions import (
    Action,
    Answered,
    FirstByte,
    Pick,
    Release,
    SendBodyPick,
    SendBodyPiece,
    SendHeadersPick,
    SendRefusal,
    SendResponseHeadersContinue,
)
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import (
    BodyMode,
    Closed,
    Cut,
    Event,
    NotPicked,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
)

SETTINGS = Settings(max_body_bytes=7)


class Broken(AssertionError):
    """An invariant does not hold."""


class Judge:
    """Feeds one conversation and keeps count of what it says."""

    def __init__(self, kind: type[Conversation] = Conversation):
        self.budget = ByteBudget(10)
        self.conversation = kind(SETTINGS, self.budget)
        self.picks = self.picks_answered = self.answers = 0
        self.placed: set[str] = set()
        self.released: list[str] = []
        self.body_in = self.body_out = b""
        self.mode: BodyMode | None = None
        self.is_body_over = False

    def feed(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Picked | NotPicked) and self.picks == self.picks_answered:
                continue  # our own side answers what it was asked, and once
            self._note(event)
            for action in self.conversation.receive(event, 0.0):
                self._judge(action)
        self.finish()

    def finish(self) -> None:
        for action in self.conversation.receive(Closed(), 1.0):
            self._judge(action)
        if sorted(self.released) != sorted(self.placed):
            raise Broken(f"placed {self.placed}, released {self.released}")
        if self.budget.taken:
            raise Broken(f"{self.budget.taken} bytes not given back")
        answered_in_full_duplex = self.mode is BodyMode.FULL_DUPLEX and self.answers and not self.refused
        if answered_in_full_duplex and self.body_out != self.body_in:
            raise Broken(f"{self.body_in!r} came in, {self.body_out!r} went out")

    refused = has_begun = is_cut = False

    def _note(self, event: Event) -> None:
        self.is_cut = isinstance(event, Cut)
        if isinstance(event, Picked | NotPicked):
            self.picks_answered += 1
        if isinstance(event, Picked):
            self.placed.add(event.placement)
        elif isinstance(event, RequestHeaders) and self.mode is None and self.conversation.state.name == "HEADERS":
            self.mode, self.is_body_over = event.request_mode, event.end_of_stream
        elif isinstance(event, RequestTrailers):
            self.is_body_over = True
        elif isinstance(event, RequestBody) and self.mode is not None and not self.is_body_over:
            if self.conversation.state.name in ("BODY", "PICK", "RESPONSE"):
                self.body_in += event.data
            self.is_body_over = event.end_of_stream

    def _judge(self, action: Action) -> None:
        match action:
            case Pick():
                self.picks += 1
            case SendHeadersPick() | SendBodyPick():
                self.answers += 1
            case SendResponseHeadersContinue():
                self.has_begun = True
            case SendRefusal() if self.has_begun:
                raise Broken("refused in the middle of a response")
            case SendRefusal():
                # A cut takes the place of the pick that went out before.
                self.answers += not self.is_cut
                self.refused = True
            case SendBodyPiece(data=data):
                self.body_out += data
            case Release(placement=placement):
                self.released.append(placement)
            case FirstByte(placement=placement) | Answered(placement=placement) if placement in self.released:
                raise Broken("word of a response after its release")
        if self.picks > 1:
            raise Broken("asked for two picks")
        if self.answers > 1:
            raise Broken("answered twice")
        if len(set(self.released)) != len(self.released):
            raise Broken("released twice")
        if self.budget.taken > self.budget.limit:
            raise Broken("budget exceeded")
