"""What a picker needs of an engine's numbers, whatever they are called there, and what follows from two looks. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

PROCESS_START = "process_start_time_seconds"


class Unreadable(ValueError):
    """A page that is not what the engine writes."""


@dataclass(frozen=True, slots=True)
class Which:
    """Whose numbers are meant on a page that several engines share: of a data-parallel rank, of a model; or all."""

    rank: int | None = None
    model: str = ""

    def __str__(self) -> str:
        rank = "any rank" if self.rank is None else f"rank {self.rank}"
        return f"{rank} of model {self.model}" if self.model else rank


@dataclass(frozen=True, slots=True)
class Counters:
    """What an engine has done since it started.

    `prompt_tokens` excludes what came from its cache. Of the tokens looked up in its prefix cache `reused_tokens` were
    found; both count a request when it is admitted. What an engine does not count is 0.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    successes: int = 0
    steps: int = 0
    looked_up_tokens: int = 0
    reused_tokens: int = 0
    first_tokens: int = 0
    errors: int = 0


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """LoRA adapters by name: in running requests, in waiting ones; `slots`: so many fit on the GPU, 0: unknown."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Metrics:
    """One look at an engine.

    `kv_used`: share of KV blocks that running requests hold, 0 to 1; None where the engine does not say, which is not
    the same as none. `sleeps`: no request is served. `ranks`: those on the page. `started_at`: the engine's own time,
    to compare with an earlier one; 0: unknown. `waiting_uncached_tokens`: None where only requests are counted.
    """

    running: int = 0
    waiting: int = 0
    kv_used: float | None = None
    sleeps: bool = False
    kv_capacity_tokens: int = 0
    ranks: frozenset[str] = frozenset()
    started_at: float = 0.0
    counters: Counters = field(default_factory=Counters)
    adapters: AdapterUse = AdapterUse()
    waiting_uncached_tokens: int | None = None

    @property
    def waiting_tokens(self) -> int:
        """The prompt tokens to compute for the queue.

        Where the engine counts waiting requests only, as vLLM 0.32 does, it is an estimate: as many for each as the
        average request had.
        """
        if self.waiting_uncached_tokens is not None:
            return self.waiting_uncached_tokens
        done = self.counters.successes
        return self.waiting * self.counters.prompt_tokens // done if done else 0


def rates(before: Counters, after: Counters, elapsed_s: float) -> tuple[float, float]:
    """Prompt tokens computed and tokens generated per second. Zeros for an engine that started in between."""
    if elapsed_s <= 0 or has_gone_back(before, after):
        return 0.0, 0.0
    prefill = after.prompt_tokens - before.prompt_tokens
    decode = after.generation_tokens - before.generation_tokens
    # Prompt tokens net of cached ones may shrink for a moment: the two are not counted at the same time.
    return max(0, prefill) / elapsed_s, decode / elapsed_s


def has_restarted(before: Metrics, after: Metrics) -> bool:
    """Whether the second look was at another process."""
    return before.started_at != after.started_at or has_gone_back(before.counters, after.counters)


def has_gone_back(before: Counters, after: Counters) -> bool:
    """Whether a counter shrank."""
    return (
        after.generation_tokens < before.generation_tokens
        or after.successes < before.successes
        or after.steps < before.steps
    )


# -- Prometheus' text format -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of a page."""

    name: str
    labels: dict[str, str]
    value: float


def read_samples(page: bytes, wanted: Sequence[str]) -> list[Sample]:
    """The lines of these metrics. Raises Unreadable.

    Parsing all of vLLM's 74 kB takes ten times as long as parsing the few lines that are wanted.
    """
    starts = tuple(f"{name}{follows}" for name in wanted for follows in ("{", " "))
    lines = (line for line in page.decode(errors="replace").splitlines() if line.startswith(starts))
    try:
        return list(_parse("\n".join(lines) + "\n"))
    except ValueError as error:
        raise Unreadable(f"the page is not in Prometheus' text format: {type(error).__name__}") from None


def over(combine: Callable[[Iterable[float]], float], samples: Iterable[Sample], *names: str) -> float | None:
    """The samples of the first of these names that is there, put together; None where none is."""
    found = list(samples)
    for name in names:
        if values := [sample.value for sample in found if sample.name == name]:
            return combine(values)
    return None


def total(samples: Iterable[Sample], *names: str) -> int:
    """The sum over the first of these names that is there; 0 where none is."""
    return int(over(sum, samples, *names) or 0)


_MOST_DIGITS = 9


def whole(text: str | None) -> int:
    """A label's number; 0 where it is none, or one that no engine can mean and no record can hold."""
    return int(text) if text and len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else 0


def _parse(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                raise ValueError("not a finite number")
            yield Sample(sample.name, sample.labels, sample.value)
