"""Mixed traffic while workers, adapters, models and tenants come and go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from picker.simulation.process import DidNotStart
from picker.simulation.stack import MODEL, Stack
from tests.chaos.judge import Fates
from tests.integration.traffic import SENTENCE

STAYING = 2
"""Workers, which serve `MODEL` all the time. Those after them are replaced in turn."""


_NAMES = 6
"""Of models and adapters that come and go: each has metric series of its own, up to a bound."""


_EMPTY_S = 3.0
"""An address stays empty for a while, as that of a pod does. One that another model takes over at once gets requests
for the old one until its agent has asked it: they come back as the engine's own 404.
"""


@dataclass
class Soak:
    """`steady`: of requests for the model that stays. `passing`: for models and adapters that may be gone."""

    steady: Fates = field(default_factory=Fates)
    passing: Fates = field(default_factory=Fates)
    broken: int = 0
    """Answers that ended in the middle because their worker was killed, as it must be."""
    left: int = 0
    """Clients that went away before they had an answer."""
    replaced: int = 0


@contextlib.asynccontextmanager
async def soak(stack: Stack, per_s: float, replace_every_s: float) -> AsyncIterator[Soak]:
    """Both for as long as the block lasts."""
    told = Soak()
    async with asyncio.TaskGroup() as tasks:
        churn = tasks.create_task(_churn(stack, told, replace_every_s))
        sender = tasks.create_task(_send(stack.url, told, per_s))
        yield told
        churn.cancel()
        sender.cancel()


async def _churn(stack: Stack, told: Soak, every_s: float) -> None:
    command = {number: stack.workers[number]._command for number in range(STAYING, len(stack.workers))}
    while True:
        await asyncio.sleep(every_s)
        number = STAYING + told.replaced % (len(stack.workers) - STAYING)
        name = told.replaced % _NAMES
        what = ("--adapter", f"tuned-{name}") if told.replaced % 4 < 2 else ("--model", f"m-{name}")
        stack.workers[number].kill()
        stack.workers[number]._command = [*command[number], *what]
        await asyncio.sleep(_EMPTY_S)
        # On a busy machine one may take longer than anybody waits; it is another's turn then.
        with contextlib.suppress(DidNotStart):
            await stack.restart_worker(number)
        told.replaced += 1


async def _send(url: str, told: Soak, per_s: float) -> None:
    rng = Random(7)
    limits = httpx.Limits(max_connections=500, max_keepalive_connections=50)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client, asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(_one(client, told, rng))
            await asyncio.sleep(rng.expovariate(per_s))


async def _one(client: httpx.AsyncClient, told: Soak, rng: Random) -> None:
    is_passing = rng.random() < 0.2
    newest = max(0, told.replaced - rng.randrange(4)) % _NAMES
    model = rng.choice([f"tuned-{newest}", f"m-{newest}"]) if is_passing else MODEL
    fates = told.passing if is_passing else told.steady
    body = _body(model, rng)
    headers = {
        "x-llm-d-inference-fairness-id": f"tenant-{rng.getrandbits(32)}",
        "x-session-id": f"{rng.getrandbits(16)}",
    }
    fates.sent += 1
    try:
        async with asyncio.timeout(0.05 if rng.random() < 0.05 else None):
            fates.note(await client.post("/v1/chat/completions", json=body, headers=headers))
    except TimeoutError:
        fates.sent -= 1
        told.left += 1
    except httpx.RemoteProtocolError:
        told.broken += 1
    except httpx.HTTPError as error:
        fates.lost.append(repr(error))


def _body(model: str, rng: Random) -> dict[str, Any]:
    topic = f"Topic {rng.randrange(200)}. " + SENTENCE * rng.randrange(1, 30)
    messages = [{"role": "user", "content": f"{topic} {rng.getrandbits(24)}"}]
    return {"model": model, "messages": messages, "max_tokens": rng.choice([1, 4, 30]), "stream": rng.random() < 0.5}
