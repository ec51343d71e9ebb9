"""What is known of a prompt's prefix, and by which means."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from picker.prompts import chain


class Rung(enum.StrEnum):
    """How a prefix chain came about; the first is the best."""

    TOKENS = "tokens"
    PART = "part"
    TEXT = "text"
    LOAD = "load"


@dataclass(frozen=True, slots=True)
class PrefixChain:
    """A prompt's index blocks. `block_tokens` is what one block stands for.

    On the rung PART they are exact and end early: time ran out, or an image follows. `prompt_tokens` is an estimate
    then, as it is on the rung TEXT.
    """

    rung: Rung
    prompt_tokens: int = 0
    blocks: list[int] = field(default_factory=list, repr=False)
    block_tokens: int = chain.INDEX_TOKENS

    @property
    def exact(self) -> bool:
        """Whether the blocks are those that engines announce."""
        return self.rung in (Rung.TOKENS, Rung.PART)


LOAD_ONLY = PrefixChain(Rung.LOAD)
