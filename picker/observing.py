"""What is told of each pick, and to whom: the record of decisions, at present."""

from __future__ import annotations

import time
from collections.abc import Mapping

from picker.config import Config
from picker.events.decided import Asked, Decided, Moment, Seen
from picker.events.recorder import Recorder
from picker.events.shortened import exclusions_of
from picker.extproc.access_log import Outcome
from picker.extproc.actions import Pick
from picker.fleet.freeze import freeze
from picker.fleet.view import View
from picker.placing import Placement
from picker.prompts.prefix import Rung
from picker.requests.headers import read_terms
from picker.requests.model import Dialect, InferenceRequest
from picker.requests.usage import Usage
from picker.scheduling.decision import STATUS, Decision, Refused, Routed
from picker.scheduling.request import SchedulingRequest


def asked_for(request: InferenceRequest, rung: Rung, headers: Mapping[str, str]) -> Asked:
    """What is told of a request that was read."""
    return Asked(request.terms, request.dialect, request.stream, rung.value, headers.get("traceparent", ""))


def named_in(config: Config) -> set[str]:
    """Tenants and objectives that the configuration names, so that they are no secrets."""
    classes, quotas = config.admission.classes, config.admission.quotas
    return {
        *config.admission.tenants,
        *(name for each in classes for name in (each.name, *each.objectives)),
        *(name for quota in quotas for name in quota.tenants),
        *(name for profile in config.profiles for name in (*profile.match.tenants, *profile.match.objectives)),
    }


class Observer:
    """Stands beside the picks of one process. Costs next to nothing where nothing is recorded."""

    def __init__(self, recorder: Recorder, view: View, replayable: bool = False):
        self._recorder = recorder
        self._view = view
        self._replayable = replayable

    def before(self, about: SchedulingRequest, now: float) -> Seen | None:
        """What the decision that is made now will see, where decisions are to be made again later."""
        if not self._replayable:
            return None
        view = self._view
        hits, loaded = view.hit_blocks(about.chain), view.with_adapter(about.adapter)
        return Seen(freeze(view), view.roster(), hits, loaded, now)

    def routed(self, asked: Asked, placement: Placement, ties: int, moment: Moment, seen: Seen | None = None) -> str:
        """A request was placed. The `traceparent` that its worker is to get, "" where it is in no trace of ours."""
        if not self._recorder.is_on:
            return ""
        decided = self._recorder.routed(
            asked, placement.request, placement.decision, placement.booking, self._view.roster(), ties, moment,
            time.monotonic(), seen,
        )  # fmt: skip
        return decided.span.traceparent if decided.span else ""

    def refused(
        self,
        asked: Asked,
        about: SchedulingRequest,
        refused: Refused,
        ties: int,
        moment: Moment,
        seen: Seen | None = None,
    ) -> None:
        """Nobody may serve a request."""
        if self._recorder.is_on:
            roster = self._view.roster()
            out = exclusions_of(refused, roster)
            status = STATUS[refused.reason]
            self._recorder.refused(refused.reason, status, moment, asked, about, out, roster, ties, seen)

    def imagined(
        self, asked: Asked, about: SchedulingRequest, decision: Decision, ties: int, moment: Moment
    ) -> Decided:
        """A decision that was only asked about; it is not recorded."""
        roster = self._view.roster()
        if isinstance(decision, Routed):
            return self._recorder.imagined("route", "", 0, asked, about, decision, roster, moment, ties)
        status = STATUS[decision.reason]
        imagined = self._recorder.imagined("refuse", decision.reason, status, asked, about, None, roster, moment, ties)
        imagined.ruled_out = exclusions_of(decision, roster)
        return imagined

    def turned_away(self, asked: Asked, about: SchedulingRequest, reason: str, status: int, moment: Moment) -> None:
        """A request was understood and not admitted."""
        if self._recorder.is_on:
            self._recorder.refused(reason, status, moment, asked, about)

    def unreadable(self, wanted: Pick, reason: str, status: int, moment: Moment) -> None:
        """A request was refused without being understood."""
        if self._recorder.is_on:
            asked = Asked(read_terms(wanted.headers), Dialect.UNKNOWN, False, "", wanted.headers.get("traceparent", ""))
            self._recorder.refused(reason, status, moment, asked)

    def passed(self, reason: str, moment: Moment) -> None:
        """A request was left to Envoy."""
        if self._recorder.is_on:
            self._recorder.passed(reason, moment)

    def replied(self, placement: Placement, now: float) -> None:
        """The answer to the proxy has gone out."""
        self._recorder.replied(placement.booking, now)

    def first_byte(self, placement: Placement, status: int, served: str, now: float) -> None:
        """A worker has begun to answer."""
        self._recorder.first_byte(placement.booking, status, served, now)

    def told(self, placement: Placement, usage: Usage) -> None:
        """A response has told what it took."""
        self._recorder.told(placement.booking, usage.prompt, usage.cached, usage.output)

    def released(self, placement: Placement, now: float, is_unfinished: bool) -> None:
        """The exchange is over. `is_unfinished`: its response has begun to pass and has not come to its end."""
        self._recorder.released(placement.booking, now, is_unfinished)

    def logged(self, outcome: Outcome) -> None:
        """Envoy has logged an exchange."""
        self._recorder.logged(outcome)
