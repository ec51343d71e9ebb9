"""From what a request says of itself to its class, its tenant's place and its deadlines."""

from __future__ import annotations

from dataclasses import dataclass

import xxhash

from picker.admission.control import ranked
from picker.admission.entry import NEVER
from picker.admission.settings import AdmissionSettings, ClassSettings
from picker.requests.model import Terms

STRANGERS = 0
"""The bucket of all tenants that are not named in the configuration, where some are."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Times, in seconds on the clock of `now`; see `Entry`."""

    leave_at: float
    workers_by: float
    first_token_by: float


class Rules:
    """Classes and tenants by the settings. `seed`: so that nobody can choose an id that shares a bucket."""

    def __init__(self, settings: AdmissionSettings, seed: int):
        self._settings = settings
        self._seed = seed
        self.classes = ranked(settings)
        self._ranks = {name: rank for rank, each in enumerate(self.classes) for name in (each.name, *each.objectives)}
        self._default = self._ranks[settings.default_class]

    def rank(self, objective: str) -> int | None:
        """The rank of the class of this objective; None where no class has it."""
        return self._ranks.get(objective)

    @property
    def default_rank(self) -> int:
        """The rank of requests whose objective names no class."""
        return self._default

    def tenant(self, name: str) -> str | int:
        """Where a tenant of this name waits: by itself, or in a bucket with others."""
        if name in self._settings.tenants:
            return name
        if self._settings.tenants or not name:
            return STRANGERS
        return xxhash.xxh3_64_intdigest(name.encode(), self._seed) % self._settings.tenant_buckets

    def deadlines(self, rank: int, terms: Terms, cold_s: float, now: float) -> Deadlines:
        """`cold_s`: what the prompt's prefill takes alone and uncached. No objective is shorter than that."""
        own = self.classes[rank]
        patience_s = terms.timeout_s or NEVER
        return Deadlines(
            leave_at=now + min(own.max_wait_s, patience_s),
            workers_by=now + min(own.wait_for_workers_s, patience_s),
            first_token_by=now + max(cold_s, min(_objective_s(own, cold_s), terms.ttft_s or NEVER)),
        )


def _objective_s(own: ClassSettings, cold_s: float) -> float:
    return NEVER if own.ttft_s is None else own.ttft_s + own.ttft_prefills * cold_s
