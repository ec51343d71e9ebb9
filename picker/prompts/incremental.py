"""A text's prefix chain at the cost of what is new in it.

The text is cut at special tokens into segments. Two memos look at them:

    states    (scope, the segments so far)  ->  chain state after them, and the index blocks of the last
    tokens    (tokenizer, segment)          ->  its tokens

A conversation that goes on finds all of its earlier segments in the first, and pays for the last turn only. One that
shares a long document with others, behind a different beginning or in another scope, finds its tokens in the second.
What neither knows is tokenised, some at a time, so that it can be stopped in between.

Keys are 128-bit hashes without a secret. Somebody who makes them collide spoils a prediction, not an answer.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct

from xxhash import xxh3_128_digest

from picker.prompts.chain import ChainState, pack
from picker.prompts.memo import Memo, MemoStatistics
from picker.prompts.prefix import PrefixChain, Rung
from picker.prompts.tokenizer import ModelTokenizer

BYTES_PER_TOKEN = 4
"""Of English text and a current vocabulary; only for what nobody has tokenised."""

BATCH_CHARS = 1 << 16
"""Tokenised at a time (about 30 ms of a core), between two looks at whether to go on."""

MOST_SEGMENT_CHARS = 1 << 18
"""Of text without a cut: it is tokenised in one go (100 ms), which nobody can stop."""

_HEAD = Struct("<QIB")
"""Of a step: the last hash, tokens so far, and how many bytes of them are pending."""


class IncrementalReader:
    """Texts to prefix chains. Thread-safe."""

    def __init__(self, states_bytes: int, tokens_bytes: int, most_segment_chars: int = MOST_SEGMENT_CHARS):
        self._states = Memo(states_bytes)
        self._tokens = Memo(tokens_bytes)
        self._most_segment_chars = most_segment_chars

    def read(
        self,
        text: str,
        start: int,
        tokenizer: ModelTokenizer,
        should_stop: Callable[[], bool],
        *,
        add_special_tokens: bool,
    ) -> PrefixChain:
        """The chain of a text whose scope is `start`. Raises UnicodeEncodeError for half a surrogate pair."""
        before, behind = tokenizer.frame if add_special_tokens else ([], [])
        segments, unread = _up_to_long(tokenizer.segmenter.split(text), self._most_segment_chars)
        digests = [xxh3_128_digest(segment.encode()) for segment in segments]
        keys = _keys(start.to_bytes(8, "little") + tokenizer.digest + pack(before), digests)
        steps = [_step(ChainState(start), pack(before)), *self._states.leading(keys)]
        known = len(steps) - 1
        steps += self._advance(
            _state(steps[-1]), keys[known:], segments[known:], digests[known:], tokenizer, should_stop
        )
        self._states.touch(keys[:known])
        found = _prefix(steps, segments[len(steps) - 1 :], pack(behind))
        return _without_end(found, unread) if unread else found

    def statistics(self) -> tuple[MemoStatistics, MemoStatistics]:
        """Of the states and of the tokens."""
        return self._states.statistics(), self._tokens.statistics()

    def _advance(
        self,
        state: ChainState,
        keys: Sequence[bytes],
        segments: Sequence[str],
        digests: Sequence[bytes],
        tokenizer: ModelTokenizer,
        should_stop: Callable[[], bool],
    ) -> list[bytes]:
        """The steps of these segments, or of the first of them if it is to stop."""
        steps: list[bytes] = []
        for batch in _batches(segments):
            if should_stop():
                break
            for packed in self._tokenise(segments[batch], digests[batch], tokenizer):
                steps.append(_step(state, packed))
                state = _state(steps[-1])
        self._states.put(zip(keys, steps, strict=False))
        return steps

    def _tokenise(self, segments: Sequence[str], digests: Sequence[bytes], tokenizer: ModelTokenizer) -> list[bytes]:
        """Each segment's packed tokens."""
        keys = [tokenizer.digest + digest for digest in digests]
        known = {key: packed for key in keys if (packed := self._tokens.get(key)) is not None}
        unseen = {key: segment for key, segment in zip(keys, segments, strict=True) if key not in known}
        encoded = tokenizer.encode_all(list(unseen.values()), add_special_tokens=False) if unseen else []
        fresh = {key: pack(tokens) for key, tokens in zip(unseen, encoded, strict=True)}
        self._tokens.put(fresh.items())
        known |= fresh
        return [known[key] for key in keys]


def _up_to_long(segments: list[str], most_chars: int) -> tuple[list[str], int]:
    """The segments up to the first that is longer, with its beginning, and how many characters follow."""
    for place, segment in enumerate(segments):
        if len(segment) > most_chars:
            rest = sum(map(len, segments[place:])) - most_chars
            return [*segments[:place], segment[:most_chars]], rest
    return segments, 0


def _without_end(found: PrefixChain, unread: int) -> PrefixChain:
    """As far as the tokens are certain: the last ones before a cut in mid-text depend on what follows."""
    blocks = found.blocks[:-1] if found.rung is Rung.TOKENS else found.blocks
    return PrefixChain(Rung.PART, found.prompt_tokens + unread // BYTES_PER_TOKEN, blocks)


def _keys(beginning: bytes, digests: Iterable[bytes]) -> list[bytes]:
    """A key for each prefix of segments."""
    key = xxh3_128_digest(beginning)
    return [key := xxh3_128_digest(key + digest) for digest in digests]


def _batches(segments: Sequence[str]) -> Iterator[slice]:
    start = size = 0
    for place, segment in enumerate(segments):
        size += len(segment)
        if size >= BATCH_CHARS:
            yield slice(start, place + 1)
            start, size = place + 1, 0
    if start < len(segments):
        yield slice(start, len(segments))


def _step(state: ChainState, packed: bytes) -> bytes:
    """The state after these tokens and the index blocks that they complete, as bytes: head, pending tokens, blocks."""
    state, blocks = state.advance(packed)
    return _HEAD.pack(state.previous, state.tokens, len(state.pending)) + state.pending + array("Q", blocks).tobytes()


def _state(step: bytes) -> ChainState:
    previous, tokens, pending = _HEAD.unpack_from(step)
    return ChainState(previous, tokens, step[_HEAD.size : _HEAD.size + pending])


def _blocks(step: bytes) -> bytes:
    return step[_HEAD.size + step[_HEAD.size - 1] :]


def _prefix(steps: Sequence[bytes], rest: Sequence[str], behind: bytes) -> PrefixChain:
    blocks = array("Q", b"".join(map(_blocks, steps))).tolist()
    last = _state(steps[-1])
    if rest:
        return PrefixChain(Rung.PART, last.tokens + sum(map(len, rest)) // BYTES_PER_TOKEN, blocks)
    state, more = last.advance(behind)
    return PrefixChain(Rung.TOKENS, state.tokens, blocks + more)
