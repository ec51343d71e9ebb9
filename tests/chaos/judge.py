"""What became of each request of an open-loop load, and whether the view is right again afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

from picker.simulation.stack import MODEL, Stack
from tests.integration.traffic import SENTENCE, Conversation

PREDICTION_SLACK_TOKENS = 64 + 16
"""A prefix is known in index blocks of 64 tokens, and engines count blocks of 16."""
_TURNS = 8
_BEGUN = "reset reason: protocol error"
"""Envoy 1.40 says so where an answer broke off whose head it had seen and not passed on yet."""


@dataclass
class Fates:
    """Of all requests sent. `refused` were refused by a picker, with its reason; `broken` ended in the middle of a 200,
    which nobody can try elsewhere; `lost` is everything else.
    """

    sent: int = 0
    answered: int = 0
    broken: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    def note(self, response: httpx.Response) -> None:
        """A response has come."""
        if response.status_code == 200:
            self.answered += 1
        elif response.status_code == 502 and response.text.endswith(_BEGUN):
            self.broken += 1
        elif reason := response.headers.get("x-picker-reason"):
            self.refused[reason] = self.refused.get(reason, 0) + 1
        else:
            self.lost.append(f"{response.status_code} {response.text[:120]}")


@contextlib.asynccontextmanager
async def load(url: str, per_s: float, fates: Fates, seed: int = 0, timeout_s: float = 60.0) -> AsyncIterator[None]:
    """So many requests a second within the block, whatever becomes of earlier ones; at its end all have their fate."""
    leaving, rng = asyncio.Event(), Random(seed)
    chats = [f"Chat {number}. " + SENTENCE * (4 + number % 12) for number in range(24)]

    async def one(client: httpx.AsyncClient) -> None:
        content = f"{rng.choice(chats)} Question {rng.getrandbits(32)}."
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}], "max_tokens": 4}
        try:
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                await _read(response, fates)
        except httpx.HTTPError as error:
            fates.lost.append(repr(error))

    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=100)
    async with httpx.AsyncClient(base_url=url, timeout=timeout_s, limits=limits) as client:
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(_send(one, client, tasks, fates, leaving, per_s, rng))
            yield
            leaving.set()
            await sender


async def _read(response: httpx.Response, fates: Fates) -> None:
    try:
        await response.aread()
    except (httpx.RemoteProtocolError, httpx.ReadError) as error:
        if response.status_code != 200:
            fates.lost.append(f"{response.status_code} {error!r}")
        else:
            fates.broken += 1
    else:
        fates.note(response)


async def _send(
    one: Any,
    client: httpx.AsyncClient,
    tasks: asyncio.TaskGroup,
    fates: Fates,
    leaving: asyncio.Event,
    per_s: float,
    rng: Random,
) -> None:
    due = time.monotonic()
    while not leaving.is_set():
        fates.sent += 1
        tasks.create_task(one(client))
        due += rng.expovariate(per_s)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leaving.wait(), max(0.0, due - time.monotonic()))


async def seconds_to_recover(stack: Stack, within_s: float = 180.0) -> float:
    """Until every picker knows all workers, hears Redis, and counts every prefix; infinite if that takes too long."""
    started = time.monotonic()
    while not await _is_whole(stack):
        if time.monotonic() - started > within_s:
            return math.inf
        await asyncio.sleep(0.1)
    return time.monotonic() - started


async def _is_whole(stack: Stack) -> bool:
    wanted = {"picker_workers_ready": len(stack.workers), "picker_redis_connected": 1, "picker_dirty_slots": 0}
    for number in range(len(stack.pickers)):
        for name, value in wanted.items():
            if not await stack.metric_is(name, value, number):
                return False
    return True


async def wrong_predictions(stack: Stack, conversations: int = 6) -> list[str]:
    """Conversations of which a picker's prediction goes on to differ from what the worker finds in its cache."""
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        told = await asyncio.gather(*(_wrong(client, f"after all {number}") for number in range(conversations)))
    return [wrong for wrong in told if wrong]


async def _wrong(client: httpx.AsyncClient, name: str) -> str:
    conversation, wrong = Conversation(name, sentences=40), ""
    await conversation.turn(client)
    for _ in range(_TURNS):
        # What a worker has just cached is known a little later, on a busy machine by more.
        await asyncio.sleep(1.0)
        wrong = _difference(await conversation.turn(client))
        if not wrong:
            break
    return f"{wrong}, workers {conversation.workers}" if wrong else ""


def _difference(response: httpx.Response) -> str:
    decision = response.headers.get("x-picker-decision")
    if response.status_code != 200 or not decision:
        return f"{response.status_code}, decision {decision}: {response.text[:120]}"
    told = dict(part.split("=") for part in decision.split())
    predicted = int(told["hit"].partition("/")[0])
    cached = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return "" if abs(predicted - cached) <= PREDICTION_SLACK_TOKENS else f"predicted {predicted}, cached {cached}"
