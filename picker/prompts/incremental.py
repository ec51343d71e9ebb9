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

from xxhash import xxh3_128_digest

from picker.prompts.chain import ChainState, pack
from picker.prompts.memo import Memo, MemoStatistics
from picker.prompts.prefix import PrefixChain, Rung
from picker.prompts.tokenizer import ModelTokenizer

BYTES_PER_TOKEN = 4
"""Of English text and a current vocabulary; only for what nobody has tokenised."""

BATCH_CHARS = 1 << 16
"""Tokenised at a time (about 30 ms of a core), between two looks at whether to go on."""

_Step = tuple[ChainState, "array[int]"]


class IncrementalReader:
    """Texts to prefix chains. Thread-safe."""

    def __init__(self, states_bytes: int, tokens_bytes: int):
        self._states: Memo[_Step] = Memo(states_bytes)
        self._tokens: Memo[bytes] = Memo(tokens_bytes)

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
        segments = tokenizer.segmenter.split(text)
        digests = [xxh3_128_digest(segment.encode()) for segment in segments]
        first = ChainState(start).advance(pack(before))
        keys = _keys(start.to_bytes(8, "little") + tokenizer.digest + pack(before), digests)
        steps = [(first[0], array("Q", first[1])), *self._states.leading(keys)]
        known = len(steps) - 1
        new = self._advance(steps[-1][0], keys[known:], segments[known:], digests[known:], tokenizer, should_stop)
        steps += new
        self._states.touch(keys[:known])
        return _prefix(steps, segments[len(steps) - 1 :], pack(behind))

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
    ) -> list[_Step]:
        """The steps of these segments, or of the first of them if it is to stop."""
        steps: list[_Step] = []
        for batch in _batches(segments):
            if should_stop():
                break
            packed = self._tokenise(segments[batch], digests[batch], tokenizer)
            for each in packed:
                state, blocks = state.advance(each)
                steps.append((state, array("Q", blocks)))
        self._states.put_all((key, step, 8 * len(step[1])) for key, step in zip(keys, steps, strict=False))
        return steps

    def _tokenise(self, segments: Sequence[str], digests: Sequence[bytes], tokenizer: ModelTokenizer) -> list[bytes]:
        """Each segment's packed tokens."""
        keys = [tokenizer.digest + digest for digest in digests]
        known = {key: packed for key in keys if (packed := self._tokens.get(key)) is not None}
        unseen = {key: segment for key, segment in zip(keys, segments, strict=True) if key not in known}
        encoded = tokenizer.encode_all(list(unseen.values()), add_special_tokens=False) if unseen else []
        fresh = {key: pack(tokens) for key, tokens in zip(unseen, encoded, strict=True)}
        self._tokens.put_all((key, packed, len(packed)) for key, packed in fresh.items())
        known |= fresh
        return [known[key] for key in keys]


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


def _prefix(steps: Sequence[_Step], rest: Sequence[str], behind: bytes) -> PrefixChain:
    blocks: list[int] = []
    for _, each in steps:
        blocks.extend(each)
    last = steps[-1][0]
    if rest:
        return PrefixChain(Rung.PART, last.tokens + sum(map(len, rest)) // BYTES_PER_TOKEN, blocks)
    state, more = last.advance(behind)
    return PrefixChain(Rung.TOKENS, state.tokens, blocks + more)
