"""Where the blocks that an engine announces stand in Picker's prefix chain, and which index blocks end in them. Pure.

A block may have any size. The chain goes on by 16 tokens, and what a block leaves over is carried to the next one:
SGLang's pages of one token end in the same index blocks as vLLM's blocks of 16.
"""

from __future__ import annotations

from collections.abc import Iterator

from picker.agent.events import Stored
from picker.prompts import chain

_STRIDE = chain.INDEX_TOKENS // chain.HASH_TOKENS

Link = tuple[int | None, int, bytes, tuple[int, ...]]
"""The chain at a block's end: its last value (None: opaque), the number of tokens up to the end, those of them that
came after the last value, packed; and the index blocks that end in the block.
"""
NOWHERE: Link = (None, 0, b"", ())


def scope(model: str, event: Stored) -> int:
    """The chain's first value, for blocks at the beginning of a prompt."""
    return chain.scope(model, event.adapter, event.salt or _salt(event))


def links_of(event: Stored, start: int | None, tokens: int, pending: bytes) -> list[Link]:
    """One for each of the event's blocks; NOWHERE from the first on whose hash took in what the chain does not know.

    The other three are the link before: its last value, its number of tokens, and those that it left over. Raises
    ValueError for something that is not a token id.
    """
    blocks = len(event.hashes)
    if start is None:
        return [NOWHERE] * blocks
    clear = _blocks_before_opaque(event)
    packed = pending + chain.fold(chain.pack(event.tokens[: clear * event.block_size]), _media(event, clear))
    return [*_cut(start, packed, clear, event.block_size, tokens), *[NOWHERE] * (blocks - clear)]


def _cut(start: int, packed: bytes, count: int, size: int, tokens: int) -> Iterator[Link]:
    """The links of `count` engine blocks of `size` tokens each, the first of which follows `tokens` tokens.

    `packed`: their tokens, and before them those that the block before has left over after chain value `start`.
    """
    values = chain.extend_packed(start, packed)
    left_over = chain.token_count(packed) - count * size
    base = (tokens - left_over) // chain.HASH_TOKENS
    done = 0
    for end in range(left_over + size, left_over + count * size + 1, size):
        before, done = done, end // chain.HASH_TOKENS
        first = before + (_STRIDE - 1 - (base + before)) % _STRIDE
        pending = packed[chain.HASH_BYTES * done : chain.TOKEN_BYTES * end]
        yield values[done - 1] if done else start, tokens - left_over + end, pending, tuple(values[first:done:_STRIDE])


def _salt(event: Stored) -> str:
    """The salt of a request, which vLLM puts among the first block's extra keys, as a bare text."""
    if not event.hashes:
        return ""
    texts = [key for key in _other_keys(event, 0) if isinstance(key, str)]
    return texts[0] if len(texts) == 1 else ""


def _blocks_before_opaque(event: Stored) -> int:
    for position in range(len(event.hashes)):
        keys = _other_keys(event, position)
        others = [key for key in keys if not _is_medium(key)]
        is_salt = position == 0 and event.parent is None and len(others) == 1 and isinstance(others[0], str)
        if others and not is_salt:
            return position
    return len(event.hashes)


def _is_medium(key: object) -> bool:
    """An image's, an audio's or a video's identifier, and where it begins, in tokens from the block's start.

    With vLLM 0.32 it is among the keys of each block that it reaches into; below 0 it began in an earlier one.
    """
    return isinstance(key, list) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int


def _media(event: Stored, blocks: int) -> list[tuple[int, str]]:
    """Where media begin among the tokens of the first `blocks`, and their identifiers."""
    return [
        (position * event.block_size + key[1], key[0])
        for position in range(blocks if event.extra_keys else 0)
        for key in _other_keys(event, position)
        if isinstance(key, list) and _is_medium(key) and 0 <= key[1] < event.block_size
    ]


def _other_keys(event: Stored, position: int) -> list[object]:
    """Extra keys of a block without the adapter's name, which vLLM puts first and into every block."""
    keys = event.extra_keys[position] if event.extra_keys and position < len(event.extra_keys) else None
    if not keys:
        return []
    return keys[1:] if event.adapter and keys[0] == event.adapter else keys
