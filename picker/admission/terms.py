"""From what a request says of itself to its class, its tenant's place and its deadlines."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import xxhash

from picker.admission.control import ranked
from picker.admission.entry import NEVER
from picker.admission.settings import AdmissionSettings, ClassSettings
from picker.requests.model import Terms
from picker.scheduling.model import WorkerModel

STRANGERS = 0
"""The bucket of all tenants that are not named in the configuration, where some are."""


class Deadlines(msgspec.Struct, frozen=True, gc=False):
    """Times, in seconds on the clock of `now`; see `Entry`."""

    leave_at: float
    workers_by: float
    first_token_by: float


class Rules:
    """Classes and tenants by the settings. `seed`: so that nobody can choose an id that shares a bucket.

    `model`: how long a prompt's prefill takes alone and uncached.
    """

    def __init__(self, settings: AdmissionSettings, seed: int, model: WorkerModel):
        self._settings = settings
        self._model = model
        self._seed = seed
        self.classes = ranked(settings)
        self._ranks = {name: rank for rank, each in enumerate(self.classes) for name in (each.name, *each.objectives)}
        self._default = self._ranks[settings.default_class]

    def weigh(self, tenants: Mapping[str, float]) -> None:
        """These are the tenants that are named, from now on."""
        self._settings = msgspec.structs.replace(self._settings, tenants=dict(tenants))

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

    def deadlines(self, rank: int, terms: Terms, prompt_tokens: int, now: float) -> Deadlines:
        """Of a request that comes now."""
        own = self.classes[rank]
        patience_s = terms.timeout_s or NEVER
        has_objective = own.ttft_s is not None or terms.ttft_s is not None
        return Deadlines(
            leave_at=now + min(own.max_wait_s, patience_s),
            workers_by=now + min(own.wait_for_workers_s, patience_s),
            first_token_by=now + self._objective_s(own, terms, prompt_tokens) if has_objective else NEVER,
        )

    def _objective_s(self, own: ClassSettings, terms: Terms, prompt_tokens: int) -> float:
        cold_s = self._model.prefill_on_one_s(prompt_tokens)
        usual_s = NEVER if own.ttft_s is None else own.ttft_s + own.ttft_prefills * cold_s
        return min(usual_s, terms.ttft_s or NEVER)
