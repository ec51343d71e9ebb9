"""What became of the requests of a run, and the figures that are made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from picker.fleet.inflight import Floats
from picker.simulation.discrete.slo import Slo

FAILED = math.inf


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request as its client saw it. Seconds and tokens; a failed one has an infinite `ttft_s`.

    `cold_s` is what its prompt takes on an idle worker with an empty cache; `worker` is -1 where nobody served it.
    """

    at: float
    ttft_s: float
    decode_s: float
    cold_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    worker: int
    kind: str
    is_measured: bool

    def meets(self, slo: Slo) -> bool:
        """Whether it was within the objective."""
        return slo.is_met(self.ttft_s, self.decode_s, self.output_tokens, self.cold_s)


@dataclass(frozen=True, slots=True)
class Load:
    """What the workers reported at a moment: requests running and waiting, shape (workers,)."""

    at: float
    running: tuple[int, ...]
    waiting: tuple[int, ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers, warm-up left out. Times in seconds, rates in tokens and requests a second.

    `attained`: share of requests within the objective. `goodput`: output tokens a second of those requests.
    """

    requests: int
    failures: int
    attained: float
    goodput: float
    output_rate: float
    request_rate: float
    hit_ratio: float
    ttft_p50_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    tpot_p50_s: float
    tpot_p99_s: float
    e2e_p99_s: float
    attained_by_kind: dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """All requests that ended, and the load over time. `is_whole` is False for a run that was given up early."""

    requests: Sequence[Request] = field(repr=False)
    load: Sequence[Load] = field(repr=False)
    is_whole: bool = True

    def measured(self) -> list[Request]:
        """The requests after the warm-up."""
        return [request for request in self.requests if request.is_measured]

    def attained(self, slo: Slo) -> float:
        """Share of the measured requests within the objective; 0 where there is none."""
        requests = self.measured()
        return float(met(requests, slo).mean()) if requests else 0.0

    def figures(self, slo: Slo) -> Figures:
        """The run in numbers."""
        requests = self.measured()
        good = met(requests, slo)
        output, span = column(requests, "output_tokens"), _span(requests)
        served = [request for request in requests if request.ttft_s < FAILED]
        ttft, decode = column(served, "ttft_s"), column(served, "decode_s")
        tpot = decode / np.maximum(column(served, "output_tokens") - 1, 1)
        prompts = max(1, sum(request.prompt_tokens for request in served))
        kinds = sorted({request.kind for request in requests})
        return Figures(
            requests=len(requests),
            failures=len(requests) - len(served),
            attained=float(good.mean()) if requests else 0.0,
            goodput=float(output @ good) / span,
            output_rate=sum(request.output_tokens for request in served) / span,
            request_rate=len(served) / span,
            hit_ratio=sum(request.cached_tokens for request in served) / prompts,
            ttft_p50_s=_percentile(ttft, 50),
            ttft_p90_s=_percentile(ttft, 90),
            ttft_p99_s=_percentile(ttft, 99),
            tpot_p50_s=_percentile(tpot, 50),
            tpot_p99_s=_percentile(tpot, 99),
            e2e_p99_s=_percentile(ttft + decode, 99),
            attained_by_kind={
                kind: float(good[[request.kind == kind for request in requests]].mean()) for kind in kinds if kind
            },
        )


def met(requests: Sequence[Request], slo: Slo) -> Floats:
    """1 where a request met the objective, else 0; shape (requests,)."""
    return np.array([r.meets(slo) for r in requests], np.float64)


def column(requests: Sequence[Request], name: str) -> Floats:
    """One field of all requests, shape (requests,)."""
    values: npt.NDArray[np.float64] = np.array([getattr(request, name) for request in requests], np.float64)
    return values


def _span(requests: Sequence[Request]) -> float:
    """From the first arrival to the last end."""
    if not requests:
        return 1.0
    ends = [request.at + request.ttft_s + request.decode_s for request in requests if request.ttft_s < FAILED]
    return max(1e-9, max(ends, default=0.0) - min(request.at for request in requests))


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else math.nan
