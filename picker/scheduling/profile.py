"""Profiles: how requests of a model, a tenant, an objective or a size are to be placed. Read from the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(gt=0)]
Labels = dict[str, tuple[str, ...]]
"""From a worker's label to the values that will do; `engine`, `version`, `gpu`, `endpoint`, `worker` are labels too."""


class Match(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which requests; all that is given must hold.

    models, tenants, objectives: by name, of which one must be the request's.
    min_prompt_tokens, max_prompt_tokens: by the prompt's length, estimated where nothing tokenises it.
    """

    models: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    objectives: tuple[str, ...] = ()
    min_prompt_tokens: int = 0
    max_prompt_tokens: int | None = None

    def fits(self, model: str, tenant: str, objective: str, prompt_tokens: int) -> bool:
        """Whether this request is one of them."""
        return (
            (not self.models or model in self.models)
            and (not self.tenants or tenant in self.tenants)
            and (not self.objectives or objective in self.objectives)
            and self.min_prompt_tokens <= prompt_tokens
            and (self.max_prompt_tokens is None or prompt_tokens <= self.max_prompt_tokens)
        )


class WorkerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker that has reached one of these gets nothing more of a profile. None is no limit.

    running: requests that pickers have placed there and not seen end.
    tokens: prompt tokens of those.
    waiting: requests that the worker says are waiting in its own queue.
    kv_used: share of its KV cache in use by running requests, 0 to 1.
    """

    running: Positive | None = None
    tokens: Positive | None = None
    waiting: Positive | None = None
    kv_used: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None

    @property
    def any(self) -> bool:
        """Whether there is a limit at all."""
        return self != _UNLIMITED


_UNLIMITED = WorkerLimits()


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to place the requests that match.

    name: for errors and explanations.
    match: which requests; without it all.
    policy: instead of the configuration's.
    require: labels that a worker must have; others are ruled out.
    prefer: labels that a worker should have; others cost `prefer_s` more. A pool that is elastic.
    prefer_s: seconds that a worker without the preferred labels costs more.
    limits: of a worker; beyond them it is ruled out for this profile, which keeps its last places for others.
    weights: of the policy's terms by name; 1 where none is given.
    idle_s: what it costs to give work to an idle worker. Above 0 traffic keeps together, and idle workers stay idle.
    """

    name: str = "default"
    match: Match = Match()
    policy: str | None = None
    require: Labels = {}
    prefer: Labels = {}
    prefer_s: NonNegative = 5.0
    limits: WorkerLimits = WorkerLimits()
    weights: dict[str, NonNegative] = {}
    idle_s: NonNegative = 0.0


DEFAULT = Profile()


def choose(profiles: Sequence[Profile], model: str, tenant: str, objective: str, prompt_tokens: int) -> Profile:
    """The first profile that matches, else `DEFAULT`."""
    return next((each for each in profiles if each.match.fits(model, tenant, objective, prompt_tokens)), DEFAULT)


def labels_of(require: Mapping[str, Sequence[str]]) -> tuple[tuple[str, frozenset[str]], ...]:
    """As masks are kept by."""
    return tuple((label, frozenset(values)) for label, values in require.items())
