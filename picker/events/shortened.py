"""A decision in short: what is told of it, out of the arrays over all workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from picker.events.record import Candidate, RuledOut
from picker.fleet.facts import WorkerFacts
from picker.fleet.masks import Bools
from picker.scheduling.decision import Decision, Routed, ruled_out
from picker.scheduling.request import SchedulingRequest

_MOST_CANDIDATES = 8
"""Candidates in a record."""

_MOST_NAMES = 16
_INT_BYTES = 44
"""Of a block's hash in a list."""

Roster = Mapping[int, WorkerFacts]


class Short(msgspec.Struct, frozen=True, gc=False):
    """A decision without its arrays: the cheapest workers of it, as names and endpoints.

    `hits` are theirs, in their order, and `costs` for each of `terms` theirs, one after another.
    """

    policy: str
    endpoints: tuple[str, ...]
    hit_tokens: int
    best_hit_tokens: int
    predicted_prefill_s: float
    is_detour: bool
    eligible: int
    ruled_out: tuple[RuledOut, ...]
    workers: tuple[tuple[str, str], ...]
    hits: tuple[int, ...]
    terms: tuple[str, ...]
    costs: tuple[float, ...]

    def told(self) -> dict[str, Any]:
        """As fields of a record."""
        fields = msgspec.structs.asdict(self)
        for name in ("workers", "hits", "terms", "costs"):
            del fields[name]
        return {**fields, "candidates": tuple(map(self._candidate, range(len(self.workers))))}

    def _candidate(self, rank: int) -> Candidate:
        worker, endpoint = self.workers[rank]
        costs = self.costs[rank :: len(self.workers)]
        return Candidate(
            worker=worker,
            endpoint=endpoint,
            cost=round(sum(costs), 6),
            hit_tokens=self.hits[rank],
            terms={name: round(cost, 6) for name, cost in zip(self.terms, costs, strict=True)},
        )


def shortened(decision: Routed, roster: Roster, chosen: Sequence[int]) -> Short:
    """What is known of these slots. In a large fleet each decision comes to this, so it must not cost much."""
    hits, terms, eligible = decision.hits, decision.terms, int(np.count_nonzero(decision.eligible))
    is_anybody_out = eligible < int(np.count_nonzero(decision.known))
    return Short(
        policy=decision.policy,
        endpoints=decision.endpoints,
        hit_tokens=decision.hit_tokens,
        best_hit_tokens=best_hit_tokens(decision),
        predicted_prefill_s=round(decision.work_s, 6),
        is_detour=decision.is_detour,
        eligible=eligible,
        ruled_out=exclusions_of(decision, roster) if is_anybody_out else (),
        workers=tuple([(facts.worker, facts.endpoint) for facts in map(roster.__getitem__, chosen)]),
        hits=tuple([hits.item(slot) for slot in chosen]),
        terms=tuple(terms),
        costs=tuple([values.item(slot) for values in terms.values() for slot in chosen]),
    )


def best_hit_tokens(decision: Routed) -> int:
    """The most that any worker holds that could have been chosen."""
    hits = decision.hits
    # Half the time of max().
    best = int(hits.item(int(hits.argmax())))
    return best if best <= decision.hit_tokens else int(hits[decision.eligible].max())


def exclusions_of(decision: Decision, roster: Roster) -> tuple[RuledOut, ...]:
    """Who was ruled out by what, rule by rule in their order."""
    return tuple(_ruled_out(rule, out, roster) for rule, out in ruled_out(decision.known, decision.steps))


def _ruled_out(rule: str, out: Bools, roster: Roster) -> RuledOut:
    slots = np.flatnonzero(out)
    names = tuple(roster[slot].worker for slot in slots[:_MOST_NAMES].tolist() if slot in roster)
    return RuledOut(rule=rule, count=len(slots), workers=names)


def cheapest(decision: Routed) -> list[int]:
    """The chosen slots in their order, then the next ones by cost."""
    count = min(_MOST_CANDIDATES, int(np.count_nonzero(decision.eligible)))
    cost = np.where(decision.eligible, sum(decision.terms.values()), np.inf)
    near = np.argpartition(cost, count - 1)[:count]
    ranked: list[int] = near[np.argsort(cost[near], kind="stable")].tolist()
    return list(dict.fromkeys((*decision.slots, *ranked)))[: max(count, len(decision.slots))]


def kept_bytes(about: SchedulingRequest, decision: Routed) -> int:
    """Of arrays and of the prompt's blocks, about."""
    arrays = 8 * (1 + len(decision.terms)) + len(decision.steps)
    return len(decision.known) * arrays + _INT_BYTES * len(about.chain)


def is_served(model: str, roster: Roster) -> bool:
    """Whether any worker has a model or adapter of this name."""
    return any(model in facts.models or model in facts.adapters for facts in roster.values())
