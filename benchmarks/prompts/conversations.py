"""Chat bodies of a wished number of tokens, whose last turn can be made new."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation.words import load_words

TURN_TOKENS = 500
"""What a turn of an agent's conversation has in published traces, more or less."""

_WORDS = load_words().texts


class Conversation:
    """A chat of about `tokens` tokens, in turns of 500. Everything before the last turn is the same each time."""

    def __init__(self, tokenizer: ModelTokenizer, model: str, tokens: int, seed: int = 0):
        self._model = model
        self._random = Random(seed)
        sample = self._text(4000)
        words_per_token = 4000 / len(tokenizer.encode(sample, add_special_tokens=False))
        self._words = int(words_per_token * TURN_TOKENS)
        turns = max(1, tokens // TURN_TOKENS - 1)
        self._history = [self._turn(number) for number in range(turns - turns % 2)]

    @property
    def history(self) -> bytes:
        """The body one turn earlier."""
        return self._body(self._history[:-1])

    def body(self) -> bytes:
        """The body with a last turn that nobody has seen."""
        return self._body([*self._history, self._turn(len(self._history))])

    def other(self, seed: int) -> bytes:
        """A body that shares nothing with this one."""
        random, self._random = self._random, Random(seed)
        turns = [self._turn(number) for number in range(len(self._history) + 1)]
        self._random = random
        return self._body(turns)

    def _turn(self, number: int) -> dict[str, Any]:
        return {"role": ("user", "assistant")[number % 2], "content": self._text(self._words)}

    def _text(self, words: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=words))

    def _body(self, messages: list[dict[str, Any]]) -> bytes:
        return msgspec.json.encode({"model": self._model, "messages": messages})
