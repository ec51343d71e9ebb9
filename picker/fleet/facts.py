"""What the view reads of what agents say about a worker, and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

_FACTS_AS_LABELS = ("engine", "version", "gpu", "endpoint", "worker")
UNBOUNDED = 2**62
"""Tokens that a worker takes at once, where it does not say how many."""


class WorkerFacts(Protocol):
    """What the view reads of a worker's record (`picker.redisview.records.WorkerRecord` has all of it)."""

    @property
    def worker(self) -> str: ...  # noqa: D102
    @property
    def epoch(self) -> int: ...  # noqa: D102
    @property
    def endpoint(self) -> str: ...  # noqa: D102
    @property
    def state(self) -> str: ...  # noqa: D102
    @property
    def models(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def adapters(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def publishes_kv(self) -> bool: ...  # noqa: D102
    @property
    def kv_capacity_tokens(self) -> int: ...  # noqa: D102
    @property
    def context_limit_tokens(self) -> int: ...  # noqa: D102
    @property
    def resident_adapters(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def gpu(self) -> str: ...  # noqa: D102
    @property
    def adapter_slots(self) -> int: ...  # noqa: D102
    @property
    def tokenizer(self) -> str: ...  # noqa: D102
    @property
    def labels(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def engine(self) -> str: ...  # noqa: D102
    @property
    def version(self) -> str: ...  # noqa: D102


class WorkerLoad(Protocol):
    """What the view reads of a worker's load (`picker.redisview.records.LoadRecord` has all of it)."""

    @property
    def beat(self) -> int: ...  # noqa: D102
    @property
    def running(self) -> int: ...  # noqa: D102
    @property
    def waiting(self) -> int: ...  # noqa: D102
    @property
    def waiting_tokens(self) -> int: ...  # noqa: D102
    @property
    def kv_used(self) -> float: ...  # noqa: D102
    @property
    def looked_up_tokens(self) -> int: ...  # noqa: D102
    @property
    def reused_tokens(self) -> int: ...  # noqa: D102
    @property
    def generated_tokens(self) -> int: ...  # noqa: D102
    @property
    def finished(self) -> int: ...  # noqa: D102
    @property
    def first_tokens(self) -> int: ...  # noqa: D102


def serves(facts: WorkerFacts, model: str) -> bool:
    """Whether it has this model or adapter. One that is ready and does not say what it has may be asked for any."""
    return model in facts.models or model in facts.adapters or (not facts.models and facts.state == "ready")


def most_tokens(facts: WorkerFacts) -> int:
    """Prompt and output together. Where a worker has not said it, there is no limit to go by."""
    return min(limit or UNBOUNDED for limit in (facts.context_limit_tokens, facts.kv_capacity_tokens))


def label_of(facts: WorkerFacts, label: str) -> str | None:
    """The value of a label; some facts count as labels where there is no label of that name."""
    if label in _FACTS_AS_LABELS:
        return facts.labels.get(label) or str(getattr(facts, label))
    return facts.labels.get(label)
