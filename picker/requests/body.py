"""JSON bodies, read lazily: only the fields that a dialect names are looked at, and only when it needs their values."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np

from picker.requests.errors import BadRequest
from picker.requests.model import PendingPrompt, Prompt
from picker.requests.outline import model_span

MOST_LENIENT_BYTES = 1 << 20
"""Of a body that only the lenient reader may understand; it is five times slower than the strict one."""

MOST_SKIPPED_VALUES = 2 << 20
"""Of a body whose fields are looked for. It takes 20 ms to skip so many, during which nothing else goes on."""

MOST_VALUES = 100_000
"""Of a prompt that objects are made of (up to 50 ms, during which nothing else goes on)."""

MOST_SCALAR_BYTES = 1 << 20
"""Of a name, a number, a switch: more than any has, and still decoded within milliseconds."""

_SLICE_BYTES = 1 << 16
_MOST_TOKENS = 1 << 32
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def fields(kind: type[_Fields], body: bytes) -> _Fields:
    """The fields that `kind`, a struct of `msgspec.Raw`, names. Raises BadRequest for what is no JSON object.

    Of a body with more than `MOST_SKIPPED_VALUES` it is `model` at most.
    """
    if holds_more(body, MOST_SKIPPED_VALUES):
        span = model_span(body)
        return kind(model=msgspec.Raw(body[span])) if span else kind()
    try:
        decoded: _Fields = _decoder(kind).decode(body)
        return decoded
    except RecursionError:
        raise BadRequest("The request body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _lenient(kind, body)


def value(raw: msgspec.Raw, type_: Any) -> Any:
    """The value if it is there and of this type, else None: the engine will say what is wrong with it."""
    if not raw:
        return None
    try:
        return msgspec.json.decode(raw, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def scalar(raw: msgspec.Raw, type_: Any) -> Any:
    """As `value`, and None too where it is longer than `MOST_SCALAR_BYTES`."""
    return value(raw, type_) if raw and size(raw) <= MOST_SCALAR_BYTES else None


def opens_with(raw: msgspec.Raw, mark: bytes) -> bool:
    """Whether it is a value of this kind, whose length does not matter then."""
    return bytes(memoryview(raw)[:1]) == mark


def size(*raws: msgspec.Raw) -> int:
    """Bytes of these together."""
    return sum(memoryview(raw).nbytes for raw in raws)


def holds_more(data: bytes | msgspec.Raw, most: int) -> bool:
    """Whether it may be JSON of more than so many values. Commas and brackets within strings count, which is cheap."""
    view, found = memoryview(data), 0
    if view.nbytes <= most:
        return False
    # In slices: whoever waits for the interpreter gets it in between.
    for start in range(0, view.nbytes, _SLICE_BYTES):
        # This bit is all that tells `[` from `{`; of other characters it makes a comma of 0x0c, which JSON has none of.
        folded = np.frombuffer(view[start : start + _SLICE_BYTES], np.uint8) | 0x20
        found += int(np.count_nonzero(folded == ord("{")) + np.count_nonzero(folded == ord(",")))
        if found > most:
            return True
    return False


def pending_prompt(
    read: Callable[[], Prompt | None], *raws: msgspec.Raw, text: Sequence[msgspec.Raw] = ()
) -> PendingPrompt:
    """A prompt that `read` makes of these; nobody but the engine understands it where one holds too many values."""
    return PendingPrompt(
        lambda: None if any(holds_more(raw, MOST_VALUES) for raw in raws) else read(), size(*raws), text
    )


def text(raw: msgspec.Raw) -> str:
    """The string, or "" where there is none."""
    return value(raw, str) or ""


def count(raw: msgspec.Raw) -> int | None:
    """A whole number from 1 on, within reason, or None. 1024.0 counts: some clients have no integers."""
    number = scalar(raw, float)
    return int(number) if number is not None and 1 <= number < _MOST_TOKENS and number.is_integer() else None


@functools.cache
def _decoder(kind: type[_Fields]) -> msgspec.json.Decoder[_Fields]:
    return msgspec.json.Decoder(kind)


def _lenient(kind: type[_Fields], body: bytes) -> _Fields:
    """What engines in Python accept and the JSON standard does not: NaN, half surrogates, a byte order mark."""
    if len(body) > MOST_LENIENT_BYTES:
        raise BadRequest("The request body is not a JSON object.")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("The request body is not a JSON object.") from None
    if not isinstance(found, dict):
        raise BadRequest("The request body is not a JSON object.")
    return kind(**{name: raw for name in kind.__struct_fields__ if (raw := _raw(found.get(name)))})


def _raw(found: object) -> msgspec.Raw:
    """As JSON again, or nothing where the value itself is what the standard has no words for."""
    if found is None:
        return msgspec.Raw()
    try:
        return msgspec.Raw(msgspec.json.encode(found))
    except (UnicodeEncodeError, OverflowError, RecursionError):
        return msgspec.Raw()
