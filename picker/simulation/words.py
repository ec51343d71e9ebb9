"""Words that survive a round trip: each is one token, and text made of them tokenises to the same tokens again.

Traces write their prompts with them, and simulated workers their answers, so that an answer that comes back in the next
turn of a conversation hits the cache as it does with a real model.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

DEMO_TOKENIZER = Path(__file__).parent / "data" / "tiny-llama"
# Byte-level BPE writes a leading space as Ġ, SentencePiece as ▁.
_WORD = re.compile(r"[Ġ▁]([a-z]{3,})")


class NoWords(ValueError):
    """A tokenizer that has no whole words to build text from."""


@dataclass(frozen=True, slots=True)
class Words:
    """`texts[i]`, after a space, is the token `tokens[i]`. `vocabulary_size` counts all tokens."""

    texts: tuple[str, ...]
    tokens: tuple[int, ...]
    vocabulary_size: int


def load_words(folder: Path = DEMO_TOKENIZER) -> Words:
    """The words of the tokenizer in `folder`, in order of their ids. Raises NoWords."""
    vocabulary = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab()
    found = [(token, match[1]) for text, token in vocabulary.items() if (match := _WORD.fullmatch(text))]
    if not found:
        raise NoWords(f"{folder}/tokenizer.json has no tokens that are whole lower-case words; name another tokenizer")
    tokens, texts = zip(*sorted(found), strict=True)
    return Words(texts, tokens, max(vocabulary.values()) + 1)
