"""One request inside the engine: its tokens, the blocks they fill, how far it has come."""

from __future__ import annotations

from collections.abc import Sequence as AnySequence
from dataclasses import dataclass
from hashlib import blake2b

from picker.prompts.chain import pack
from picker.simulation.kv_cache import BlockStored


@dataclass(frozen=True, slots=True)
class Request:
    """What an engine is asked to do: read `prompt` (token ids), then produce exactly `max_tokens` tokens.

    Prompts share cached blocks only if adapter and salt are the same.
    """

    id: str
    prompt: AnySequence[int]
    max_tokens: int
    adapter: str | None = None
    salt: str | None = None


class Sequence:
    """A request and its state.

    `tokens` are the prompt and what was produced; the first `computed` of them stand in the KV cache, in `blocks`.
    `cached_tokens` is what the cache supplied when the request was first admitted.
    """

    def __init__(self, request: Request, block_tokens: int):
        self.request = request
        self.tokens = list(request.prompt)
        self.blocks: list[int] = []
        self.computed = 0
        self.cached_tokens: int | None = None
        self._block_tokens = block_tokens
        self._hashes: list[int] = []

    def __repr__(self) -> str:
        return f"<Sequence {self.request.id}: {self.computed}/{len(self.tokens)} computed, {self.produced} produced>"

    @property
    def produced(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be produced."""
        return len(self.tokens) - self.computed

    @property
    def decoding(self) -> bool:
        """Whether only the last produced token is to be computed."""
        return self.remaining == 1 and self.produced > 0

    @property
    def blocks_needed(self) -> int:
        """Blocks that all of `tokens` take."""
        return -(-len(self.tokens) // self._block_tokens)

    def reusable_hashes(self) -> list[int]:
        """Hashes of the blocks that may come from the cache: not the last token's, which must be computed to go on."""
        return self._hashes_to((len(self.tokens) - 1) // self._block_tokens)

    def stored(self, first: int, end: int) -> BlockStored:
        """The announcement of blocks `first` to `end` (exclusive), which are full."""
        size, hashes = self._block_tokens, self._hashes_to(end)
        return BlockStored(
            block_hashes=tuple(hashes[first:]),
            parent_block_hash=hashes[first - 1] if first else None,
            token_ids=tuple(self.tokens[first * size : end * size]),
            block_size=size,
            extra_keys=tuple(self._extra_keys(index) for index in range(first, end)),
            lora_name=self.request.adapter,
        )

    def _hashes_to(self, end: int) -> list[int]:
        size = self._block_tokens
        for index in range(len(self._hashes), end):
            parent = self._hashes[-1] if self._hashes else 0
            tokens = self.tokens[index * size : (index + 1) * size]
            self._hashes.append(_block_hash(parent, tokens, self._extra_keys(index)))
        return self._hashes[:end]

    def _extra_keys(self, index: int) -> tuple[str, ...] | None:
        adapter = (self.request.adapter,) if self.request.adapter else ()
        salt = (self.request.salt,) if self.request.salt and index == 0 else ()
        return adapter + salt or None


def _block_hash(parent: int, tokens: AnySequence[int], extra_keys: tuple[str, ...] | None) -> int:
    """Opaque, as an engine's hashes are to everybody else; on purpose not picker.prompts.chain's."""
    data = parent.to_bytes(8, "big") + pack(tokens) + repr(extra_keys).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8, person=b"simulated kv").digest(), "big")
