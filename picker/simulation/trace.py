"""The sample trace as chat requests, at an eighth of its size.

A block of 512 tokens in the trace is one message of about 64 tokens here, the same text wherever the block occurs, so
that prompts share prefixes exactly as far as they do in the trace.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from picker.simulation.select import read
from picker.simulation.words import load_words

CONVERSATIONS = Path(__file__).parent / "data" / "conversations.jsonl"
SCALE = 8
MIN_ANSWER_TOKENS = 4
# The demo's chat template adds 7 or 8 tokens to each message.
WORDS_IN_MESSAGE = 56


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request: `at_s` seconds after the first, with a prompt of these blocks and an answer of `max_tokens`."""

    at_s: float
    blocks: tuple[int, ...]
    max_tokens: int

    def messages_for(self, seed: int) -> list[dict[str, str]]:
        """The prompt as chat messages. Different seeds give texts that share nothing."""
        last = len(self.blocks) - 1
        return [
            {"role": "assistant" if index % 2 and index != last else "user", "content": _text(seed, block)}
            for index, block in enumerate(self.blocks)
        ]


def load(path: Path = CONVERSATIONS) -> list[TraceRequest]:
    """The requests of a trace, in order of time. Raises OSError, msgspec.DecodeError."""
    return [
        TraceRequest(line.timestamp / 1000, tuple(line.hash_ids), max(MIN_ANSWER_TOKENS, line.output_length // SCALE))
        for line in read(path)
    ]


def _text(seed: int, block: int) -> str:
    return " ".join(random.Random(f"{seed}/{block}").choices(_words(), k=WORDS_IN_MESSAGE))


@cache
def _words() -> tuple[str, ...]:
    return load_words().texts
