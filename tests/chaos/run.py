"""One stack under load, one fault after another, and what came of each."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from picker.simulation.stack import Plan
from tests.chaos.faults import FAULTS, Rig
from tests.chaos.harness import Clocks, Harness, Names
from tests.chaos.judge import Fates, load, seconds_to_recover, wrong_predictions
from tests.chaos.shapes import SHAPES
from tests.integration.relay import relay

PER_S = 20.0
_BEFORE_S, _FAULT_S = 1.0, 4.0


@dataclass
class Verdict:
    """`faults` were on together. `recovered_s` is infinite where it did not become whole again.

    `wrong` are predictions that did not come true once everything was well again.
    """

    shape: str
    faults: tuple[str, ...]
    fates: Fates
    recovered_s: float
    wrong: list[str]

    @property
    def is_well(self) -> bool:
        return not self.fates.lost and not self.wrong and math.isfinite(self.recovered_s)


@contextlib.asynccontextmanager
async def rig(shape: str, folder: Path, **picker: Any) -> AsyncIterator[Rig]:
    """Three workers, two pickers with these settings, an Envoy, an agent, and Redis in this shape."""
    run, binary = SHAPES[shape]
    clocks = Clocks(folder) if Clocks.can() else None
    binary = await asyncio.to_thread(clocks.script, "redis", binary) if clocks else binary
    async with run(binary, folder) as redis, contextlib.AsyncExitStack() as exits:
        is_single = redis.url.startswith("redis://")
        to_redis = await exits.enter_async_context(relay(redis.url)) if is_single else None
        names = Names(folder) if to_redis and Names.can() else None
        url = to_redis.url if to_redis else redis.url
        plan = Plan(
            workers=3,
            pickers=2,
            worker=("--speed", "20"),
            picker={"reveal_decision": True, "stale_after_s": 3.0, **picker},
            redis=url.replace("127.0.0.1", Names.NAME) if names else url,
        )
        async with Harness(plan, clocks, names) as stack:
            yield Rig(stack, redis, to_redis, names, clocks)


async def suffer(rig: Rig, shape: str, faults: Sequence[str], per_s: float = PER_S) -> Verdict:
    """These faults at the same time, under load, then mended. One that cannot be mended leaves nothing whole.

    Raises DidNotStart, in groups.
    """
    fates, recovered_s = Fates(), math.inf
    try:
        async with load(rig.stack.url, per_s, fates):
            await asyncio.sleep(_BEFORE_S)
            async with contextlib.AsyncExitStack() as on:
                for name in faults:
                    await on.enter_async_context(FAULTS[name].on(rig))
                await asyncio.sleep(_FAULT_S)
            recovered_s = await seconds_to_recover(rig.stack)
            await asyncio.sleep(_BEFORE_S)
        wrong = await wrong_predictions(rig.stack)
    except* (RedisError, OSError) as errors:
        wrong = [repr(errors)]
    return Verdict(shape, tuple(faults), fates, recovered_s, wrong)
