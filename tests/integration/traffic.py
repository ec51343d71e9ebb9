"""Steady traffic of conversations, and a judge of what became of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx

from picker.simulation.stack import MODEL

SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. "


@dataclass
class Conversation:
    """A chat that grows by a turn with each answer."""

    name: str
    sentences: int = 6
    messages: list[dict[str, str]] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)

    async def turn(self, client: httpx.AsyncClient, **body: Any) -> httpx.Response:
        """One more question, answered; the answer joins the conversation."""
        self.messages.append(
            {"role": "user", "content": f"{self.name}, turn {len(self.messages)}. {SENTENCE * self.sentences}"}
        )
        body = {"model": MODEL, "messages": self.messages, "max_tokens": 4} | body
        response = await client.post("/v1/chat/completions", json=body)
        if response.status_code == 200:
            answer = response.json()["choices"][0]["message"]["content"]
            self.messages.append({"role": "assistant", "content": answer})
            self.workers.append(response.headers["x-worker"])
        return response


@dataclass
class Traffic:
    """What steady traffic has come to so far."""

    answered: int = 0
    failures: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def steady(url: str, users: int = 4, pause_s: float = 0.05) -> AsyncIterator[Traffic]:
    """Users who each hold one conversation after another, until the block is left."""
    traffic = Traffic()
    leaving = asyncio.Event()

    async def user(number: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            round_ = 0
            while not leaving.is_set():
                conversation = Conversation(f"user {number}, round {round_}")
                round_ += 1
                for _ in range(4):
                    await _one(conversation, client, traffic)
                    await asyncio.sleep(pause_s)

    async with asyncio.TaskGroup() as tasks:
        for number in range(users):
            tasks.create_task(user(number))
        yield traffic
        leaving.set()


async def _one(conversation: Conversation, client: httpx.AsyncClient, traffic: Traffic) -> None:
    try:
        response = await conversation.turn(client)
    except httpx.HTTPError as error:
        traffic.failures.append(repr(error))
        return
    if response.status_code != 200:
        traffic.failures.append(f"{response.status_code} {response.text[:200]}")
        return
    traffic.answered += 1
    traffic.workers.append(response.headers["x-worker"])


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], within_s: float = 30.0) -> None:
    """Waits until a condition holds; fails if it does not in a generous time."""
    async with asyncio.timeout(within_s):
        while not await condition():
            await asyncio.sleep(0.05)


async def more(traffic: Traffic, requests: int) -> None:
    """Waits for so many more answers or failures."""
    goal = traffic.answered + len(traffic.failures) + requests

    async def reached() -> bool:
        return traffic.answered + len(traffic.failures) >= goal

    await until(reached, within_s=60.0)
