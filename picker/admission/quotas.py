"""Quotas: rates of requests and tokens for each tenant and model, as token buckets.

A bucket that holds anything lets a request in, whatever it costs, and may owe afterwards: so one that is larger than
the bucket is served too, and the rate holds in the long run. Other pickers' spending comes in later (`spent`, `heard`):
until then each picker may spend what the bucket holds, so that a fleet of n lets in at most n - 1 bursts too much.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import xxhash

from picker.admission.settings import Quota

MOST_BUCKETS = 10_000
"""The least used ones are forgotten, which fills them: names come from outside."""


@dataclass(slots=True, eq=False)
class Bucket:
    """`level` is what may be spent as of `at`, in requests or tokens; below 0 it owes. `spent` was not told yet."""

    rate: float
    most: float
    level: float
    at: float
    spent: float = 0.0
    total: float | None = None
    """What all pickers have spent by their own account, when it was last heard of."""

    def refill(self, now: float) -> None:
        """Time has passed."""
        self.level = min(self.most, self.level + self.rate * (now - self.at))
        self.at = now

    def wait_s(self) -> float:
        """Until it holds anything."""
        return max(0.0, -self.level / self.rate)


Charge = tuple[Bucket, float]


class Quotas:
    """All buckets of one picker."""

    def __init__(self, quotas: Sequence[Quota]):
        self._quotas: dict[str, Quota] = {}
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()
        self.configure(quotas)

    def __bool__(self) -> bool:
        return bool(self._quotas)

    def __repr__(self) -> str:
        return f"<Quotas {len(self._quotas)}, {len(self._buckets)} buckets>"

    def configure(self, quotas: Sequence[Quota]) -> None:
        """Goes by these from now on. What was spent of one that stays as it was is spent."""
        self._quotas = {_name(quota): quota for quota in quotas}
        for name in [each for each in self._buckets if each.partition(":")[0] not in self._quotas]:
            del self._buckets[name]

    def take(self, tenant: str, model: str, tokens: int, now: float) -> tuple[list[Charge], float]:
        """Spends a request of so many tokens: what was charged, and 0; or nothing, and how long to wait, in seconds."""
        charges = list(self._charges(tenant, model, tokens, now))
        wait_s = max((bucket.wait_s() for bucket, _ in charges if bucket.level <= 0), default=0.0)
        if any(bucket.level <= 0 for bucket, _ in charges):
            return [], max(wait_s, 1e-3)
        for bucket, amount in charges:
            bucket.level -= amount
            bucket.spent += amount
        return charges, 0.0

    def give_back(self, charges: Iterable[Charge]) -> None:
        """The request was not served after all."""
        for bucket, amount in charges:
            bucket.level = min(bucket.most, bucket.level + amount)
            bucket.spent -= amount

    def spent(self) -> dict[str, float]:
        """What was spent of each bucket since this was last asked; for the other pickers."""
        amounts = {}
        for name, bucket in self._buckets.items():
            amounts[name] = bucket.spent
            bucket.spent = 0.0
        return amounts

    def unspent(self, amounts: Mapping[str, float]) -> None:
        """The others could not be told of this."""
        for name, amount in amounts.items():
            if bucket := self._buckets.get(name):
                bucket.spent += amount

    def heard(self, totals: Mapping[str, float], told: Mapping[str, float]) -> None:
        """What all pickers have spent since somebody began to count, ours included; `told` is what we have just added.

        A total that has shrunk is one that is counted anew.
        """
        for name, total in totals.items():
            bucket = self._buckets.get(name)
            if bucket is None:
                continue
            if bucket.total is not None and total >= bucket.total:
                bucket.level -= max(0.0, total - bucket.total - told.get(name, 0.0))
            bucket.total = total

    def _charges(self, tenant: str, model: str, tokens: int, now: float) -> Iterator[Charge]:
        for name, quota in self._quotas.items():
            if (quota.tenants and tenant not in quota.tenants) or (quota.models and model not in quota.models):
                continue
            # A digest: names may be secrets, and are as long as clients like.
            whose = f"{name}:{xxhash.xxh3_64_hexdigest(tenant.encode())}:{xxhash.xxh3_64_hexdigest(model.encode())}"
            if quota.requests_per_s is not None:
                yield self._bucket(f"{whose}:r", quota.requests_per_s, quota.burst_s, now), 1.0
            if quota.tokens_per_s is not None:
                yield self._bucket(f"{whose}:t", quota.tokens_per_s, quota.burst_s, now), float(tokens)

    def _bucket(self, name: str, rate: float, burst_s: float, now: float) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(rate, max(1.0, rate * burst_s), max(1.0, rate * burst_s), now)
            if len(self._buckets) > MOST_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        bucket.refill(now)
        return bucket


def _name(quota: Quota) -> str:
    """The same in all pickers that have this quota, in whatever order."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(quota))
