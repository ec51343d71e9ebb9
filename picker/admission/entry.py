"""A request that may have to wait."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from picker.scheduling.request import SchedulingRequest

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Entry:
    """One request before admission.

    `rank` is its class, 0 the highest. `lane` names those whom the same workers may serve. `tenant` is a configured
    tenant's name or the number of a bucket. `size` is the body's, in bytes. `ticket` is the caller's own.

    Times are on one clock, in seconds: `arrived_at`; `leave_at`, when it is refused at the latest, and `workers_by`
    instead where it has found no worker ready; `first_token_by`.
    """

    request: SchedulingRequest
    rank: int = 0
    lane: Hashable = ()
    tenant: str | int = ""
    size: int = 0
    arrived_at: float = 0.0
    leave_at: float = NEVER
    workers_by: float = 0.0
    first_token_by: float = NEVER
    ticket: Any = None
    cost: float = 0.0
    """Tokens that count for fairness: expected to be computed when it came, and known better when it goes."""
    until: float = field(default=NEVER, init=False)
    """How long it waits: until its time is up, or too little is left of it."""
    number: int = field(default=0, init=False)
    start: float = field(default=0.0, init=False)
    """Its tenant's virtual time before it was taken."""
    is_waiting: bool = field(default=False, init=False)
    target: int = field(default=-1, init=False)
    """The slot that it was to go to, and that had no room."""
    decide_after: float = field(default=0.0, init=False)

    @property
    def tokens(self) -> int:
        """Of its prompt."""
        return self.request.prompt_tokens

    @property
    def order(self) -> tuple[float, int]:
        """Within its tenant: the earliest deadline first, then first come."""
        return min(self.first_token_by, self.leave_at), self.number
