"""Decisions made again: with the settings that made them each comes out the same; others show what they change.

Each decision is made on what it saw when it was made. What would have followed from other decisions is not part of it:
`picker.simulation.discrete.recorded` plays the day again for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from picker.config import Config
from picker.events.decided import Seen
from picker.events.inputs import Fleet, Inputs, Process, Reader
from picker.events.record import Record, digest
from picker.fleet.freeze import FrozenView
from picker.fleet.view import View
from picker.placing import Placer
from picker.scheduling.decide import decide
from picker.scheduling.decision import Refused, Routed
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies import expected_delay, find
from picker.scheduling.profile import DEFAULT, Match, Profile, choose
from picker.scheduling.request import SchedulingRequest
from picker.ties import Ties

DECIDING = (
    "policy", "fallbacks", "profiles", "disaggregation", "failure_domain", "worker_model", "stale_after_s", "admission",
)  # fmt: skip
"""The settings that bear on decisions, and on when they are made."""

_MEASURE = find(expected_delay.NAME)
_LINE = msgspec.json.Decoder(Process | Fleet | Inputs | Record)


class BadRecording(ValueError):
    """A file that cannot be replayed. The message says why and what to do."""


def deciding(config: Config) -> dict[str, Any]:
    """The settings that bear on decisions, as they stand in recordings."""
    return {name: msgspec.to_builtins(getattr(config, name)) for name in DECIDING}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One outcome of a decision. `ttft_s` is predicted: the wait and the prefill; infinite for a refusal."""

    endpoints: tuple[str, ...]
    reason: str = ""
    hit_tokens: int = 0
    ttft_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Again:
    """A decision that was made again."""

    id: str
    model: str
    prompt_tokens: int
    recorded: tuple[str, ...]
    recorded_reason: str
    was_detour: bool
    before: Verdict
    """By the settings of the recording: what was recorded, if all is well."""
    after: Verdict
    """By the other settings."""

    @property
    def is_reproduced(self) -> bool:
        """Whether the settings of the recording give what was recorded; of a detour, all but its first endpoint."""
        decided = self.before.endpoints
        if self.was_detour and self.recorded:
            first, count = self.recorded[0], len(self.recorded)
            decided = (first, *(each for each in decided if each != first))[:count]
        return (decided, self.before.reason) == (self.recorded, self.recorded_reason)


@dataclass(slots=True)
class Totals:
    """Sums over decisions."""

    routed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    hit_tokens: int = 0
    ttft_s: list[float] = field(default_factory=list)

    def add(self, verdict: Verdict, prompt_tokens: int) -> None:
        """One more."""
        if not verdict.endpoints:
            self.refused[verdict.reason] += 1
            return
        self.routed += 1
        self.prompt_tokens += prompt_tokens
        self.hit_tokens += min(verdict.hit_tokens, prompt_tokens)
        if isfinite(verdict.ttft_s):
            self.ttft_s.append(verdict.ttft_s)


def replay(files: Iterable[Path], other: Config | None = None) -> Iterator[Again]:
    """Makes all recorded decisions again, as they are recorded and by `other`'s settings. Raises BadRecording."""
    for file in files:
        yield from _replay_file(file, other)


def _replay_file(file: Path, other: Config | None) -> Iterator[Again]:
    reader, config = Reader(), None
    for number, line in read_lines(file):
        match line:
            case Process(policy=policy):
                reader.process(line)
                config = settings_of(policy, f"{file.name}:{number}")
            case Fleet():
                reader.fleet(line)
            case Inputs():
                if config is None:
                    raise BadRecording(f"{file.name}:{number}: begins in the middle; give the older files as well")
                seen = reader.seen(line)
                yield _again(line, seen, config, other or config)


def read_lines(file: Path) -> Iterator[tuple[int, Process | Fleet | Inputs | Record]]:
    """What is in a recording, with the numbers of the lines. Raises BadRecording."""
    number = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield number, _LINE.decode(line)
    except msgspec.DecodeError as error:
        raise BadRecording(f"{file.name}:{number}: is no line of a recording: {error}") from None
    except OSError as error:
        raise BadRecording(f"{file}: cannot be read: {error.strerror}") from None


def settings_of(policy: dict[str, Any], where: str) -> Config:
    """Those that a recording was made by. Raises BadRecording."""
    try:
        return msgspec.convert(policy, Config)
    except msgspec.ValidationError as error:
        raise BadRecording(f"{where}: was written by another version of Picker: {error}") from None


def _again(line: Inputs, seen: Seen, before: Config, after: Config) -> Again:
    first = _verdict(line, seen, before)
    return Again(
        id=line.id,
        model=str(line.about.get("model") or ""),
        prompt_tokens=int(line.about.get("prompt_tokens", 0)),
        recorded=line.endpoints,
        recorded_reason=line.reason,
        was_detour=line.is_detour,
        before=first,
        after=first if after is before else _verdict(line, seen, after),
    )


def _verdict(line: Inputs, seen: Seen, config: Config) -> Verdict:
    about = msgspec.convert(line.about, SchedulingRequest)
    profile = choose(as_recorded(config.profiles), about.model or "", line.tenant, line.objective, about.prompt_tokens)
    about = msgspec.structs.replace(about, profile=profile)
    view = FrozenView(seen.frozen, seen.roster, seen.hits, seen.loaded, config.stale_after_s)
    decision, prefill = Placer(config, view, line.ties - about.sequence).decide(about, seen.now)
    if isinstance(decision, Refused):
        return Verdict((), decision.reason)
    first = prefill or decision
    ttft_s = predicted_ttft_s(about, view, config.worker_model, first.slots[0], seen.now)
    return Verdict(decision.endpoints, "", decision.hit_tokens, ttft_s)


def predicted_ttft_s(about: SchedulingRequest, view: View, model: WorkerModel, slot: int, now: float) -> float:
    """Of the same measure whatever the policy: what `expected-delay` expects there until the first token."""
    everywhere = decide(msgspec.structs.replace(about, profile=DEFAULT), view, _MEASURE, model, now, Ties())
    terms = everywhere.terms if isinstance(everywhere, Routed) else {}
    return float(sum(terms[name][slot] for name in ("wait", "work") if name in terms))


def as_recorded(profiles: Iterable[Profile]) -> list[Profile]:
    """Recordings have digests of names that were not known to the picker that made them."""
    return [msgspec.structs.replace(profile, match=_or_digests(profile.match)) for profile in profiles]


def _or_digests(match: Match) -> Match:
    tenants, objectives = ((*names, *map(digest, names)) for names in (match.tenants, match.objectives))
    return msgspec.structs.replace(match, tenants=tenants, objectives=objectives)
