"""The rounds: each contender in turn gets the same arrivals of the same requests, several times over."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from benchmarks.common.conversations import Conversations
from benchmarks.common.cpu import cpu_s
from benchmarks.common.load import Client, Exchange, chat, poisson
from benchmarks.extproc.contenders import KB, MODEL, Contender
from benchmarks.extproc.rig import Rig, Site

_WARM_UP_S = 0.5
_FLUSH_S = 0.2
"""After the last answer: Envoy sends its access log every 0.1 s, and reading that is part of the cost."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `rates`: requests a second, for each body size in bytes."""

    rates: dict[int, float]
    rounds: int
    seconds: float

    def steps(self, contenders: Sequence[Contender]) -> int:
        """How many measurements that makes."""
        return self.rounds * sum(size <= contender.most_bytes for size in self.rates for contender in contenders)


STANDARD = Plan({2 * KB: 200, 32 * KB: 200, 256 * KB: 50}, rounds=3, seconds=5)
QUICK = Plan({2 * KB: 100, 32 * KB: 100, 256 * KB: 25}, rounds=1, seconds=1.5)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One contender, one size, one round. CPU is in milliseconds for each request.

    `failures`: requests without a 200, and those that the picker did not place in the way that is measured.
    """

    contender: str
    body_bytes: int
    round: int
    requests: int
    failures: int
    p50_ms: float
    p99_ms: float
    cpu_picker_ms: float
    cpu_envoy_ms: float


async def measure(rig: Rig, plan: Plan, advance: Callable[[str], None]) -> list[Measurement]:
    """All rounds. `advance` is told what is measured next."""
    measurements = []
    for size in plan.rates:
        sites = [site for site in rig.sites if size <= site.contender.most_bytes]
        for round in range(plan.rounds):
            # Each starts a round in turn, so that none is always the one after a pause.
            for site in _rotated(sites, round):
                advance(f"{site.contender.label}, {size // KB} KB")
                measurements.append(await _measure(rig, site, plan, size, round))
    return measurements


async def idle_ms_per_s(rig: Rig, seconds: float) -> dict[str, float]:
    """CPU milliseconds a second of each responder and of Envoy without any requests."""
    before = _all_cpu_s(rig)
    await asyncio.sleep(seconds)
    return {label: 1000 * (after - before[label]) / seconds for label, after in _all_cpu_s(rig).items()}


async def _measure(rig: Rig, site: Site, plan: Plan, size: int, round: int) -> Measurement:
    conversations = Conversations(size, MODEL)
    rng = Random(round)
    client = Client(site.listen)
    first = round * 1_000_000

    async def run(seconds: float, first: int) -> list[Exchange]:
        arrivals = poisson(plan.rates[size], seconds, rng)
        return await client.run(arrivals, lambda number: chat(conversations.body(first + number)))

    await run(_WARM_UP_S, first)
    placed = await site.placed()
    picker, envoy = site.cpu_s(), cpu_s(rig.envoy.pid)
    exchanges = await run(plan.seconds, first + 500_000)
    await asyncio.sleep(_FLUSH_S)
    picker, envoy = site.cpu_s() - picker, cpu_s(rig.envoy.pid) - envoy
    client.close()
    failures = sum(exchange.status != 200 for exchange in exchanges)
    if placed is not None:
        failures = max(failures, len(exchanges) - ((await site.placed() or 0) - placed))
    p50, p99 = _percentiles_ms(exchanges)
    return Measurement(
        contender=site.contender.label,
        body_bytes=size,
        round=round,
        requests=len(exchanges),
        failures=failures,
        p50_ms=p50,
        p99_ms=p99,
        cpu_picker_ms=1000 * picker / len(exchanges),
        cpu_envoy_ms=1000 * envoy / len(exchanges),
    )


def _all_cpu_s(rig: Rig) -> dict[str, float]:
    responders = {site.contender.label: site.cpu_s() for site in rig.sites if site.responder}
    return responders | {"envoy": cpu_s(rig.envoy.pid)}


def _percentiles_ms(exchanges: list[Exchange]) -> tuple[float, float]:
    cuts = statistics.quantiles((exchange.latency_s for exchange in exchanges), n=100, method="inclusive")
    return 1000 * cuts[49], 1000 * cuts[98]


def _rotated(sites: list[Site], by: int) -> list[Site]:
    by %= len(sites)
    return sites[by:] + sites[:by]
