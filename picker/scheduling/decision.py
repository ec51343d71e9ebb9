"""What comes of a request: an ordered list of endpoints, or a refusal, and why."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt


class Reason(enum.StrEnum):
    """Why nobody can serve a request, or why nobody was chosen. The values are stable: clients and metrics see them."""

    NO_WORKERS = "no-workers"
    UNKNOWN_MODEL = "unknown-model"
    NOT_READY = "no-worker-ready"
    SUBSET = "subset-has-no-worker"
    REQUIREMENTS = "no-worker-meets-requirements"
    TOO_LONG = "prompt-exceeds-context"
    FULL = "all-workers-full"


STATUS: Mapping[Reason, int] = {
    Reason.NO_WORKERS: 503,
    Reason.UNKNOWN_MODEL: 404,
    Reason.NOT_READY: 503,
    Reason.SUBSET: 503,
    Reason.REQUIREMENTS: 503,
    Reason.TOO_LONG: 400,
    Reason.FULL: 429,
}
"""The HTTP status that tells a client what to do: 400 and 404 are its fault, 429 and 503 pass."""

RETRY_S: Mapping[Reason, int] = {
    **{reason: 5 for reason, status in STATUS.items() if status == 503},
    Reason.FULL: 1,
}
"""When a client should come back, in seconds; for the others that makes no sense."""

MESSAGE: Mapping[Reason, str] = {
    Reason.NO_WORKERS: "No worker is known to the endpoint picker.",
    Reason.UNKNOWN_MODEL: "The requested model does not exist.",
    Reason.NOT_READY: "No worker is ready to serve this model at the moment. Please try again later.",
    Reason.SUBSET: "None of the endpoints that the gateway allows can serve this request.",
    Reason.REQUIREMENTS: "No worker has the labels that this request requires.",
    Reason.TOO_LONG: "The prompt is longer than the context of every worker that serves this model.",
    Reason.FULL: "All workers that may serve this request have reached their limits. Please try again later.",
}


Step = tuple[str, npt.NDArray[np.bool_]]
"""A rule's name, and the slots that it and those before it have left."""

_NOBODY = np.zeros(0, bool)


def ruled_out(known: npt.NDArray[np.bool_], steps: Sequence[Step]) -> Iterator[Step]:
    """Each rule that rules anybody out, by name, and the slots, shape (slots,), that it is the first to rule out.

    `known` are the slots with a worker, `steps` whom each rule has left of them.
    """
    left, count = known, int(np.count_nonzero(known))
    for name, after in steps:
        rest = int(np.count_nonzero(after))
        if rest < count:
            yield name, left & ~after
        left, count = after, rest


@dataclass(frozen=True, slots=True)
class Refused:
    """Nobody may serve this request. `excluded` counts the workers that each rule ruled out.

    `known` are the slots with a worker, `steps` whom each rule has left of them.
    """

    reason: Reason
    excluded: Mapping[str, int] = field(default_factory=dict)
    known: npt.NDArray[np.bool_] = field(default_factory=lambda: _NOBODY, repr=False, compare=False)
    steps: Sequence[Step] = field(default=(), repr=False, compare=False)


class Routed(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Endpoints in the order in which to try them. Arrays have the shape (slots,); costs are in seconds.

    `terms` are the cost's parts by name: what the winner's and everybody else's cost is the sum of. `hits` are the
    prompt's tokens cached on each slot. `known` are the slots with a worker, `steps` whom each rule has left of them.
    `is_detour`: the first one stands there because a cheaper one had no room.
    """

    slots: tuple[int, ...]
    endpoints: tuple[str, ...]
    hit_tokens: int
    work_s: float
    policy: str
    terms: Mapping[str, npt.NDArray[np.float64]]
    hits: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]
    steps: Sequence[Step]
    is_detour: bool = False

    def __repr__(self) -> str:
        return f"<Routed to {self.endpoints} by {self.policy}>"

    @property
    def eligible(self) -> npt.NDArray[np.bool_]:
        """The slots that could have been chosen."""
        return self.steps[-1][1]

    def explain(self, prompt_tokens: int) -> str:
        """One line that fits a header: the winner's terms in seconds, their sum, the hit, the runner-up's cost."""
        parts = [f"policy={self.policy}"]
        parts += [f"{name}={values[self.slots[0]]:.3f}" for name, values in self.terms.items()]
        parts.append(f"cost={self.cost(0):.3f}")
        if len(self.slots) > 1:
            parts.append(f"next={self.cost(1):.3f}")
        parts.append(f"hit={self.hit_tokens}/{prompt_tokens}")
        return " ".join(parts)

    def cost(self, rank: int) -> float:
        """Cost of the winner (rank 0), the runner-up (1), ..."""
        return float(sum(values[self.slots[rank]] for values in self.terms.values()))


Decision = Routed | Refused
