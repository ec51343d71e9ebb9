"""Where a text may be cut so that the tokens of its pieces, one after the other, are the tokens of the whole.

An added token (`<|im_start|>`) is taken out of a text before anything else happens to it, so what stands before it and
what stands from it on never share a token. That holds if no other added token overlaps its text, if it takes no blanks
from its left, and if the tokenizer does nothing to a text's beginning or end; the first two are checked token by token,
the last by trying (`is_exact`), and a tokenizer that fails is given whole texts.

Pieces are at least `LEAST_CHARS` long, counted from the left: then a longer text has the pieces of a shorter one that
it begins with, except for the last, and a turn of three tokens costs no look-up of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tokenizers import Tokenizer

LEAST_CHARS = 256
MOST_CUTS = 16
SLICE_CHARS = 1 << 16

Encode = Callable[[str], list[int]]


class Segmenter:
    """Cuts texts before some special tokens, or not at all if there are none."""

    def __init__(self, cuts: Sequence[str]):
        self.cuts = tuple(cuts)
        self._pattern = re.compile("|".join(map(re.escape, cuts))) if cuts else None
        self._longest = max(map(len, cuts), default=0)

    def split(self, text: str) -> list[str]:
        """The pieces, which add up to the text."""
        if self._pattern is None or len(text) <= LEAST_CHARS:
            return [text]
        pieces: list[str] = []
        start = 0
        for place in self.places(text):
            if place - start >= LEAST_CHARS:
                pieces.append(text[start:place])
                start = place
        return [*pieces, text[start:]]

    def before_last_cut(self, text: str) -> str:
        """The text without what follows the last place where it could be cut."""
        places = list(self.places(text))
        return text[: places[-1]] if places else ""

    def places(self, text: str) -> Iterator[int]:
        """Where the text may be cut.

        In slices, since a search that finds nothing holds the interpreter to the text's end: a megabyte of HTML, where
        each tag begins like a special token, would take 20 ms.
        """
        if self._pattern is None:
            return
        start = 0
        for edge in range(SLICE_CHARS, len(text) + SLICE_CHARS, SLICE_CHARS):
            spans = [match.span() for match in self._pattern.finditer(text, start, edge + self._longest - 1)]
            while spans and spans[-1][0] >= edge:
                spans.pop()
            for begin, end in spans:
                yield begin
                start = end
            start = max(start, edge)


def find_cuts(tokenizer: Tokenizer, written: str | None) -> list[str]:
    """The added tokens that may be cut before: those in `written`, what templates write; all if it is None."""
    added: list[dict[str, Any]] = json.loads(tokenizer.to_str())["added_tokens"]
    contents = [token["content"] for token in added]
    named = [token for token in added if written is None or token["content"] in written]
    cuts = [token["content"] for token in named if not (token["lstrip"] or token["single_word"])]
    return [cut for cut in cuts if not any(_overlaps(other, cut) for other in contents if other != cut)][:MOST_CUTS]


def _overlaps(other: str, cut: str) -> bool:
    """Whether `other` may be found where it takes the beginning of `cut` away."""
    return cut in other or any(other.endswith(cut[:length]) for length in range(1, len(cut)))


_SAMPLES = (
    "", " ", "\n", "a", " a", "a ", "Hello, world.", "  two  blanks  ", "\n\nlines\n", "\t", "1234567", "don't", "é",
    "e\u0301", "日本語", "🙂\U0001f469\u200d\U0001f467", "\u00a0", "\u2581", "<", "<|", "|>", "A" * 40, "\u200d", "İ",
    "x = [1, 2]\n    return x", "\u0301", "ﬁ",
)  # fmt: skip


def is_exact(encode: Encode, cut: str) -> bool:
    """Whether cutting before `cut` gives the same tokens, tried on texts that tokenizers treat specially."""
    before = {left: encode(left) for sample in _SAMPLES for left in (sample, cut + sample)}
    after = {right: encode(right) for sample in _SAMPLES for right in (cut + sample, cut + sample + cut)}
    return all(
        encode(left + right) == tokens + more for left, tokens in before.items() for right, more in after.items()
    )
