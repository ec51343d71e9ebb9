"""Prefix chains: one 64-bit hash for every prefix of a prompt.

The hash is fine and the index coarse. Tokens are hashed in blocks of 16, each block's hash taking in the one before it,
so that a hash stands for the whole prefix up to it:

    h[-1] = XXH3_64(scope)                                  scope: model, adapter, cache salt, tagged by kind
    h[i]  = XXH3_64(h[i-1] as u64le || 16 tokens as u32le)

Every fourth value, one for 64 tokens, is an *index block*: the name under which agents publish what a worker holds and
under which pickers look it up. Because the values chain, leaving out three of four loses nothing but a remainder of up
to 63 tokens, and engines with blocks of 16, 32, 64 or 128 tokens, whatever their own hash function, version or seed,
share one key space (the agent hashes the token ids that the engine announces).

XXH3 is not collision-resistant against an adversary. A collision costs a misrouted request, never a wrong answer: the
engine compares with its own hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xxhash import xxh3_64, xxh3_64_intdigest

HASH_ID = "xxh3-16-v1"
HASH_TOKENS = 16
INDEX_TOKENS = 64
TEXT_BLOCK_BYTES = 512
TOKEN_BYTES = 4
HASH_BYTES = HASH_TOKENS * TOKEN_BYTES
_STRIDE = INDEX_TOKENS // HASH_TOKENS


def scope(model: str, adapter: str = "", salt: str = "") -> int:
    """The value a chain starts from. Prompts of different scopes never share a prefix.

    Each part is tagged with its kind and its length, so that an adapter named like another request's salt, or two
    parts that merely concatenate to the same text, give different scopes.
    """
    parts = ((b"m", model), (b"a", adapter), (b"s", salt))
    encoded = ((tag, text.encode("utf-8", "surrogatepass")) for tag, text in parts)
    return xxh3_64_intdigest(b"".join(tag + len(data).to_bytes(4, "little") + data for tag, data in encoded))


def extend(previous: int, tokens: Sequence[int]) -> list[int]:
    """The hashes of the whole 16-token blocks in `tokens`, which follow the prefix whose hash is `previous`.

    Raises ValueError for a token id that does not fit an unsigned 32-bit integer.
    """
    return extend_packed(previous, pack(tokens))


def extend_packed(previous: int, packed: bytes) -> list[int]:
    """As `extend`, for packed tokens."""
    return _chain(previous, packed, HASH_BYTES)


def pack(tokens: Sequence[int]) -> bytes:
    """Token ids as u32le. Raises ValueError for an id that does not fit."""
    try:
        return np.asarray(tokens, dtype="<u4").tobytes()
    except (OverflowError, TypeError) as error:
        raise ValueError(f"not a list of token ids: {error}") from None


def fold(packed: bytes, media: Sequence[tuple[int, str]]) -> bytes:
    """Packed tokens in which images, audio and video are told apart, whose placeholder tokens are all alike.

    `media`: where each begins, in tokens, and its identifier, as engines hash it. Only that one token changes, to
    something that is no token: hashes chain, so all that follows differs too, wherever blocks end. What begins outside
    of these tokens is another call's.
    """
    if not media:
        return packed
    tokens = np.frombuffer(packed, "<u4").copy()
    for place, identifier in media:
        if 0 <= place < len(tokens):
            tokens[place] ^= xxh3_64_intdigest(identifier.encode("utf-8", "surrogatepass")) & 0xFFFFFFFF
    return tokens.tobytes()


@dataclass(frozen=True, slots=True)
class ChainState:
    """Where a chain stands after some tokens, so that it can go on from there: `previous` is the hash of the last whole
    16-token block, `pending` the up to 15 tokens after it, packed.
    """

    previous: int
    tokens: int = 0
    pending: bytes = field(default=b"", repr=False)

    def advance(self, packed: bytes) -> tuple[ChainState, list[int]]:
        """The state after these packed tokens, and the index blocks that they complete."""
        data = self.pending + packed
        hashes = extend_packed(self.previous, data)
        done = self.tokens // HASH_TOKENS % _STRIDE
        rest = data[len(hashes) * HASH_BYTES :]
        previous = hashes[-1] if hashes else self.previous
        return ChainState(previous, self.tokens + token_count(packed), rest), hashes[_STRIDE - 1 - done :: _STRIDE]


def token_count(packed: bytes) -> int:
    """How many tokens `pack` has packed."""
    return len(packed) // TOKEN_BYTES


def index_blocks(start: int, tokens: Sequence[int], media: Sequence[tuple[int, str]] = ()) -> list[int]:
    """The index blocks (one for each 64 tokens) of a prompt whose scope is `start`; `media` as in `fold`."""
    return extend_packed(start, fold(pack(tokens), media))[_STRIDE - 1 :: _STRIDE]


def text_blocks(start: int, text: bytes) -> list[int]:
    """The blocks of a prompt that is known as text only: one for each whole 512 bytes (about 128 tokens of English).

    They name prefixes as exactly as token blocks do, but engines announce tokens, so these find only what pickers have
    placed themselves. Each is the running XXH3_64 of all the text up to there: a third cheaper than to chain.
    """
    running = xxh3_64((start ^ 0x7E87).to_bytes(8, "little"))
    blocks: list[int] = []
    for offset in range(0, len(text) - TEXT_BLOCK_BYTES + 1, TEXT_BLOCK_BYTES):
        running.update(text[offset : offset + TEXT_BLOCK_BYTES])
        blocks.append(running.intdigest())
    return blocks


def _chain(previous: int, data: bytes, size: int) -> list[int]:
    hashes: list[int] = []
    for offset in range(0, len(data) - size + 1, size):
        previous = xxh3_64_intdigest(previous.to_bytes(8, "little") + data[offset : offset + size])
        hashes.append(previous)
    return hashes
