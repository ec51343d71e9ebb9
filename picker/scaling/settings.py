"""Settings of the scaling signals."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many workers to ask for. The formula is in docs/scaling.md.

    keda: host:port where KEDA finds its external scaler; none by default.
    target: share of their time that workers should be busy; the rest is for bursts. Above 0.8 queues grow quickly.
    startup_s: how long a new worker takes until it serves: so far ahead is demand forecast.
    window_s: over which the rate of demand and its trend are averaged. Trends count from four times this on.
    drain_s: in how long work that already waits should be done.
    tpot_s: seconds for each output token that are good enough; a worker may run as many requests at once as keep it.
    least, most: workers to ask for.
    down_after_s: fewer workers are asked for when that would have been enough for so long.
    idle_s: no worker is asked for after so long without any request; 0 keeps the least, which must then be above 0.
    """

    keda: str | None = None
    target: Share = 0.7
    startup_s: NonNegative = 120.0
    window_s: Positive = 30.0
    drain_s: Positive = 30.0
    tpot_s: Positive = 0.05
    least: Count = 1
    most: Annotated[int, msgspec.Meta(ge=1)] = 64
    down_after_s: NonNegative = 120.0
    idle_s: NonNegative = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if self.least > self.most:
            raise ValueError("least is above most")
        if not self.least and not self.idle_s:
            raise ValueError("least is 0, so idle_s must say after how long without requests no worker is needed")
