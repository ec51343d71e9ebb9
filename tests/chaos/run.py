"""One stack under load, one fault after another, and what came of each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from picker.simulation.stack import Plan, Stack
from tests.chaos.faults import FAULTS, Rig
from tests.chaos.judge import Fates, load, seconds_to_recover, wrong_predictions
from tests.chaos.shapes import SHAPES
from tests.integration.relay import relay

PER_S = 20.0
_BEFORE_S, _FAULT_S = 1.0, 4.0


@dataclass
class Verdict:
    """`faults` were on together. `wrong` are predictions that did not come true once everything was well again."""

    shape: str
    faults: tuple[str, ...]
    fates: Fates
    recovered_s: float
    wrong: list[str]


@contextlib.asynccontextmanager
async def rig(shape: str, folder: Path) -> AsyncIterator[Rig]:
    """Three workers, two pickers, an Envoy, an agent, and Redis in this shape."""
    async with SHAPES[shape](folder) as redis, contextlib.AsyncExitStack() as exits:
        is_single = redis.url.startswith("redis://")
        network = await exits.enter_async_context(relay(redis.url)) if is_single else None
        plan = Plan(
            workers=3,
            pickers=2,
            worker=("--speed", "20"),
            picker={"reveal_decision": True, "stale_after_s": 3.0},
            redis=network.url if network else redis.url,
        )
        async with Stack(plan) as stack:
            yield Rig(stack, redis, network)


async def suffer(rig: Rig, shape: str, faults: Sequence[str], per_s: float = PER_S) -> Verdict:
    """These faults at the same time, under load, then mended."""
    async with load(rig.stack.url, per_s) as fates:
        await asyncio.sleep(_BEFORE_S)
        async with contextlib.AsyncExitStack() as on:
            for name in faults:
                await on.enter_async_context(FAULTS[name](rig))
            await asyncio.sleep(_FAULT_S)
        recovered_s = await seconds_to_recover(rig.stack)
        await asyncio.sleep(_BEFORE_S)
    return Verdict(shape, tuple(faults), fates, recovered_s, await wrong_predictions(rig.stack))
