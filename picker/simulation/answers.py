"""Answers in the OpenAI dialect, whole or as a stream of events, in vLLM 0.32's shapes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from picker.simulation.realtime import Outputs, Piece

_Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Shape:
    """How the answers of one endpoint look. `choice` and `delta` take text; `opening` goes before the first delta."""

    id_prefix: str
    kind: str
    chunk_kind: str
    choice: Callable[[str], _Json]
    delta: Callable[[str], _Json]
    opening: _Json | None = None


COMPLETION = Shape(
    id_prefix="cmpl",
    kind="text_completion",
    chunk_kind="text_completion",
    choice=lambda text: {"text": text},
    delta=lambda text: {"text": text},
)
CHAT = Shape(
    id_prefix="chatcmpl",
    kind="chat.completion",
    chunk_kind="chat.completion.chunk",
    choice=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    delta=lambda text: {"delta": {"content": text}},
    opening={"delta": {"role": "assistant", "content": ""}},
)


class Answer:
    """What becomes of one HTTP request. Reads `outputs` to their end, once, by `whole` or by `events`."""

    def __init__(
        self,
        shape: Shape,
        outputs: Outputs,
        decode: Callable[[Sequence[int]], str],
        *,
        request_id: str,
        created: int,
        model: str,
        prompt_tokens: int,
    ):
        self.outputs = outputs
        self._shape = shape
        self._decode = decode
        self._head = {"id": f"{shape.id_prefix}-{request_id}", "created": created, "model": model}
        self._prompt_tokens = prompt_tokens
        self._completion_tokens = 0
        self._last_token: dict[int, int] = {}

    async def whole(self) -> _Json:
        """The body of an answer that is not streamed."""
        texts: dict[int, str] = {}
        reasons: dict[int, str | None] = {}
        async for piece in self.outputs:
            texts[piece.index] = texts.get(piece.index, "") + self._text(piece)
            reasons[piece.index] = piece.finish_reason
        choices = [_choice(index, self._shape.choice(texts[index]), reasons[index]) for index in sorted(texts)]
        return self._head | {"object": self._shape.kind, "choices": choices, "usage": self._usage()}

    async def events(self, *, include_usage: bool, usage_everywhere: bool) -> AsyncIterator[bytes]:
        """The events of a stream. One event can carry several tokens."""
        async for piece in self.outputs:
            opening = self._shape.opening if piece.index not in self._last_token else None
            delta = self._shape.delta(self._text(piece))
            usage = {"usage": self._usage()} if usage_everywhere else {}
            if opening is not None:
                yield self._event([_choice(piece.index, opening, None)], usage)
            yield self._event([_choice(piece.index, delta, piece.finish_reason)], usage)
        if include_usage:
            yield self._event([], {"usage": self._usage()})
        yield DONE

    def _event(self, choices: list[_Json], usage: _Json) -> bytes:
        chunk = self._head | {"object": self._shape.chunk_kind, "choices": choices} | usage
        return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

    def _text(self, piece: Piece) -> str:
        self._completion_tokens += len(piece.tokens)
        if not piece.tokens:
            return ""
        before = [self._last_token[piece.index]] if piece.index in self._last_token else []
        self._last_token[piece.index] = piece.tokens[-1]
        # A token's text can depend on the one before it (SentencePiece drops the space of the first).
        return self._decode(before + piece.tokens)[len(self._decode(before)) :]

    def _usage(self) -> _Json:
        return {
            "prompt_tokens": self._prompt_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
            "completion_tokens": self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.outputs.cached_tokens},
        }


def _choice(index: int, content: _Json, finish_reason: str | None) -> _Json:
    return {"index": index, **content, "logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
