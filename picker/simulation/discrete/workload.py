"""What comes in: requests with their times, from a trace (open loop) or from users who wait for answers (closed)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from picker.scheduling.request import SchedulingRequest


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request.

    `at` is in seconds. `chain` holds the ids of the full blocks of prompt and answer as far as they can be shared;
    equal ids mean equal prefixes. `session` is what a client would send to stay together; `user` whose turn it was.
    `kind` is a class to be reported by itself. What is not `measured` warms the caches. `about` is what a picker
    knew of it, where it was recorded.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    chain: Sequence[int] = field(default=(), repr=False)
    user: int = 0
    session: str = ""
    kind: str = ""
    adapter: str = ""
    tenant: str = ""
    measured: bool = True
    about: SchedulingRequest | None = field(default=None, repr=False)


class Source(Protocol):
    """Where requests come from. `block_tokens` is what one id of a chain stands for."""

    @property
    def block_tokens(self) -> int: ...  # noqa: D102
    @property
    def expected(self) -> int | None:
        """How many requests there will be, if that is known."""

    @property
    def adapters(self) -> Sequence[str]:
        """LoRA adapters that requests may be for."""

    def first(self) -> Sequence[Ask]:
        """The requests that depend on no answer, in order of time."""

    def after(self, ask: Ask, now: float) -> Ask | None:
        """What its user asks next, once this is answered or has failed."""

    def again(self, ask: Ask, at: float) -> Ask | None:
        """What its user does who was refused and told to come back then."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Requests at their times, whether or not earlier ones have been answered."""

    asks: Sequence[Ask] = field(repr=False)
    block_tokens: int
    adapters: Sequence[str] = ()

    @property
    def expected(self) -> int | None:
        """How many requests there will be."""
        return len(self.asks)

    def first(self) -> Sequence[Ask]:
        """All of them."""
        return self.asks

    def after(self, ask: Ask, now: float) -> Ask | None:
        """Nothing: nobody waits."""
        return None

    def again(self, ask: Ask, at: float) -> Ask | None:
        """Nothing: what was refused is lost."""
        return None
