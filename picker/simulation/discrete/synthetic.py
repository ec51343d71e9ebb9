"""Workloads that are made up: users who ask, read the answer and ask again, and arrivals in bursts.

What a user asks depends on the seed and on the user alone, and not on when answers come: policies are compared on the
same requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from picker.simulation.discrete.workload import Ask, Replay

BLOCK_TOKENS = 256
RAMP = 0.6
"""Users begin in this share of the warm-up, in the middle of a conversation."""
_SHARED = 1 << 50
_PERIOD_S = 20.0


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What users do. Tokens and seconds.

    prompts, prompt_tokens: so many system prompts, or documents, of that length; with `zipf` the nth is asked for in
    proportion to n ** -zipf. first_tokens, turn_tokens: what a user adds in the first and in each later turn.
    most_tokens: a conversation that would grow beyond it is over, and another begins; 0 for single requests.
    think_s: mean pause between an answer and the next request. long_share, long_tokens: so many first turns are as
    long. adapters: LoRA adapters; each conversation is with one of them, drawn as prompts are.
    """

    summary: str
    prompts: int
    prompt_tokens: int
    first_tokens: int
    turn_tokens: int
    output_tokens: int
    think_s: float
    most_tokens: int = 0
    zipf: float = 0.0
    long_share: float = 0.0
    long_tokens: int = 0
    adapters: int = 0


BEHAVIOURS: Mapping[str, Behaviour] = {
    "agents": Behaviour(
        "4 kinds of agents with prompts of 8k tokens, 8k of context to begin with, 1.5k a turn, up to 64k",
        4, 8_000, 8_000, 1_500, 200, 2.0, 64_000,
    ),
    "small-agents": Behaviour(
        "4 kinds of agents with prompts of 8k tokens, 2k of context to begin with, 0.8k a turn, up to 32k",
        4, 8_000, 2_000, 800, 200, 4.0, 32_000,
    ),
    "assistants": Behaviour(
        "64 kinds of assistants with prompts of 12k tokens, 0.4k a turn, up to 20k",
        64, 12_000, 400, 400, 150, 5.0, 20_000,
    ),
    "chat": Behaviour("chat with 16 prompts of 2k tokens, 0.2k a turn", 16, 2_000, 200, 200, 300, 10.0, 6_000),
    "shared-prompts": Behaviour(
        "single requests of 1.2k tokens behind 150 prompts of 5.6k, answers of 1k", 150, 5_600, 1_200, 0, 1_000, 0.1
    ),
    "rag": Behaviour(
        "questions about 64 documents of 20k tokens, some far more popular", 64, 20_000, 100, 0, 300, 5.0, zipf=0.8
    ),
    "adapters": Behaviour(
        "chat with 48 LoRA adapters, some far more popular, of which a worker holds 4",
        48, 1_000, 200, 200, 200, 8.0, 8_000, zipf=0.8, adapters=48,
    ),
    "long-contexts": Behaviour(
        "chat in which one conversation of a hundred begins with 100k tokens",
        16, 2_000, 200, 200, 300, 10.0, 6_000, long_share=0.01, long_tokens=100_000,
    ),
}  # fmt: skip


@dataclass(slots=True)
class _User:
    """One user's conversation. `tokens` are those of the next prompt but for the turn that will be added."""

    rng: Random
    prompt: int = 0
    tokens: int = 0
    number: int = 0
    kind: str = ""


@dataclass(slots=True)
class Users:
    """A closed loop: so many users, each with one request at a time, until `until_s`; measured from `warm_s` on."""

    behaviour: Behaviour
    users: int
    seed: int
    warm_s: float = 100.0
    until_s: float = 260.0
    block_tokens: int = BLOCK_TOKENS
    expected: int | None = None
    _users: list[_User] = field(default_factory=list, repr=False)
    _weights: list[float] = field(default_factory=list, repr=False)

    @property
    def adapters(self) -> Sequence[str]:
        """LoRA adapters that requests may be for."""
        return [_adapter(number) for number in range(self.behaviour.adapters)]

    def first(self) -> Sequence[Ask]:
        """Each user's first request."""
        behaviour = self.behaviour
        self._weights = [(rank + 1) ** -behaviour.zipf for rank in range(behaviour.prompts)]
        self._users = [_User(Random(f"user {number} {self.seed}")) for number in range(self.users)]
        asks = []
        for number, user in enumerate(self._users):
            self._meet(user)
            if user.tokens < behaviour.most_tokens:
                user.tokens = user.rng.randint(user.tokens, behaviour.most_tokens)
            asks.append(self._ask(number, user.rng.uniform(0.0, RAMP * self.warm_s)))
        return sorted(asks, key=lambda ask: ask.at)

    def after(self, ask: Ask, now: float) -> Ask | None:
        """The same user's next request, once this one was answered."""
        user, behaviour = self._users[ask.user], self.behaviour
        at = now + user.rng.expovariate(1 / behaviour.think_s)
        turn = _about(user.rng, behaviour.turn_tokens)
        user.tokens = ask.prompt_tokens + ask.output_tokens + turn
        if user.tokens > behaviour.most_tokens:
            self._meet(user)
        return self._ask(ask.user, at) if at < self.until_s else None

    def again(self, ask: Ask, at: float) -> Ask | None:
        """The same request."""
        return replace(ask, at=at) if at < self.until_s else None

    def _meet(self, user: _User) -> None:
        """A new conversation."""
        behaviour = self.behaviour
        user.number += 1
        user.prompt = user.rng.choices(range(behaviour.prompts), self._weights)[0]
        is_long = user.rng.random() < behaviour.long_share
        user.kind = ("long" if is_long else "short") if behaviour.long_share else ""
        own = behaviour.long_tokens if is_long else behaviour.first_tokens
        user.tokens = behaviour.prompt_tokens + _about(user.rng, own)

    def _ask(self, number: int, at: float) -> Ask:
        user, behaviour = self._users[number], self.behaviour
        output = _about(user.rng, behaviour.output_tokens)
        shared = behaviour.prompt_tokens // BLOCK_TOKENS
        own = (user.tokens + output) // BLOCK_TOKENS - shared
        begin, conversation = _SHARED + (user.prompt << 20), (number << 16 | user.number) << 20
        return Ask(
            at=at,
            prompt_tokens=user.tokens,
            output_tokens=output,
            chain=(*range(begin, begin + shared), *range(conversation, conversation + own)),
            user=number,
            session=f"{number}/{user.number}",
            kind=user.kind,
            adapter=_adapter(user.prompt) if behaviour.adapters else "",
            measured=at >= self.warm_s,
        )


def _adapter(number: int) -> str:
    return f"adapter-{number}"


def bursts(rate: float, seed: int, until_s: float = 260.0) -> Replay:
    """An open loop: on average `rate` requests a second, in waves of 20 s with long lulls; 32 prompts of 2k tokens."""
    rng, at = Random(f"bursts {seed}"), 0.0
    asks: list[Ask] = []
    peak = rate / 0.375
    while (at := at + rng.expovariate(peak)) < until_s:
        # The mean of sin ** 4 is 3/8.
        if rng.random() < math.sin(math.pi * at / _PERIOD_S) ** 4:
            asks.append(_single(rng, at, len(asks), at >= until_s / 10))
    return Replay(asks, BLOCK_TOKENS)


def _single(rng: Random, at: float, number: int, is_measured: bool) -> Ask:
    prompt, own, output = rng.randrange(32), _about(rng, 1000), _about(rng, 200)
    shared = 2000 // BLOCK_TOKENS
    begin = _SHARED + (prompt << 20)
    tail = (2000 + own) // BLOCK_TOKENS - shared
    chain = (*range(begin, begin + shared), *range(number << 20, (number << 20) + tail))
    return Ask(at, 2000 + own, output, chain, user=number, measured=is_measured)


def _about(rng: Random, tokens: int) -> int:
    """Half to one and a half times as many, at least one."""
    return max(1, round(tokens * rng.uniform(0.5, 1.5)))
