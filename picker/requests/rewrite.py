"""Another model's name, spliced into a body of which nothing else changes: no number, no escape, no blank."""

from __future__ import annotations

import msgspec
import numpy as np

from picker.requests.body import MOST_SKIPPED_VALUES, holds_more
from picker.requests.outline import model_span


class _Body(msgspec.Struct):
    model: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Body).decode


def splice_model(body: bytes, new: str) -> bytes | None:
    """`body` with the value of its top-level `model` replaced by `new`.

    None where there is no such string to replace. Of a repeated key the last one counts, as it does to engines.
    """
    if holds_more(body, MOST_SKIPPED_VALUES):
        span = model_span(body)
        return None if span is None else body[: span.start] + msgspec.json.encode(new) + body[span.stop :]
    try:
        model = _decode(body).model
        if not isinstance(msgspec.json.decode(model), str):
            return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    start = _address(model) - _address(body)
    return body[:start] + msgspec.json.encode(new) + body[start + memoryview(model).nbytes :]


def _address(data: bytes | msgspec.Raw) -> int:
    # A Raw is a view into the bytes that it was decoded from, which is how we know where the value stands.
    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)
