"""A picker's core without a picker: it decides, admits and books."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from picker.admission.control import Admission, Admitted, Verdict
from picker.admission.entry import Entry
from picker.admission.settings import AdmissionSettings
from picker.fleet.view import View
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import find
from picker.scheduling.request import SchedulingRequest

MODEL = WorkerModel()


class Desk:
    """A picker's core: decides, and books what is admitted."""

    def __init__(self, view: View, settings: AdmissionSettings | None = None):
        self.view = view
        self.rng = Random(1)
        self.admission = Admission(settings or AdmissionSettings(), view, MODEL, self.decide, lambda: 0.0)
        self.count = 0

    def decide(self, request: SchedulingRequest, now: float) -> tuple[Decision, None]:
        return decide(request, self.view, find("expected-delay"), MODEL, now, self.rng), None

    def entry(self, tokens: int = 1000, chain: Sequence[int] = (), now: float = 0.0, **rest: object) -> Entry:
        self.count += 1
        request = SchedulingRequest(self.count, "llama", tokens, 100, chain)
        return Entry(request, **{"rank": 1, "arrived_at": now, "leave_at": now + 30, "cost": tokens, **rest})  # type: ignore[arg-type]

    def arrive(self, entry: Entry, now: float) -> Verdict | None:
        verdict = self.admission.arrive(entry, now)
        self.book(entry, verdict, now)
        return verdict

    def dispatch(self, now: float) -> list[tuple[Entry, Verdict]]:
        found = []
        for entry, verdict in self.admission.dispatch(now):
            self.book(entry, verdict, now)
            found.append((entry, verdict))
        return found

    def book(self, entry: Entry, verdict: Verdict | None, now: float) -> None:
        if isinstance(verdict, Admitted):
            request, decision = entry.request, verdict.decision
            entry.ticket = self.view.place(
                decision.slots[0], request.chain, True, decision.work_s, request.prompt_tokens, now
            )


def chain(number: int, tokens: int) -> list[int]:
    return [number << 32 | block for block in range(1, tokens // 64 + 1)]


def crowd(desk: Desk, workers: int, tokens: int = 16_000) -> list[Entry]:
    """Fills each worker with one long prompt whose first token is to come."""
    entries = [desk.entry(tokens, chain(1000 + number, tokens)) for number in range(workers)]
    assert all(isinstance(desk.arrive(each, 0.0), Admitted) for each in entries)
    return entries
