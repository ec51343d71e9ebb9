"""Chat requests of a wished size, no two of them equal."""

from __future__ import annotations

from random import Random

import msgspec

from picker.simulation.words import load_words

_MARK = "0000000000"
_MESSAGES = 4
_MOST_MESSAGE_BYTES = 4096


class Conversations:
    """Bodies of `size` bytes, by number. Even ones differ from their first message on, odd ones only in their last.

    So half of the prompts are new to every cache, and half are a long known prefix with a new end.
    """

    def __init__(self, size: int, model: str, seed: int = 0):
        self._size = size
        self._model = model
        self._words = load_words().texts
        self._rng = Random(seed)
        texts = self._texts(size - len(self._body([""] * self._count)))
        self._new = self._cut([f"{_MARK} {texts[0]}"[: len(texts[0])], *texts[1:]])
        self._known = self._cut([*texts[:-1], f"{_MARK} {texts[-1]}"[: len(texts[-1])]])

    def body(self, number: int) -> bytes:
        """JSON of exactly `size` bytes."""
        before, after = self._known if number % 2 else self._new
        return b"%s%010d%s" % (before, number, after)

    @property
    def _count(self) -> int:
        return max(_MESSAGES, self._size // _MOST_MESSAGE_BYTES)

    def _texts(self, size: int) -> list[str]:
        """As many texts as there are messages, `size` bytes together."""
        share, rest = divmod(size, self._count)
        return [self._text(share + (i < rest)) for i in range(self._count)]

    def _text(self, size: int) -> str:
        words = self._rng.choices(self._words, k=size // 4)
        return " ".join(words).ljust(size, ".")[:size]

    def _body(self, texts: list[str]) -> bytes:
        roles = ["system", *(("user", "assistant")[i % 2] for i in range(len(texts) - 1))]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        return msgspec.json.encode({"model": self._model, "max_tokens": 256, "messages": messages})

    def _cut(self, texts: list[str]) -> tuple[bytes, bytes]:
        before, _, after = self._body(texts).partition(_MARK.encode())
        return before, after
