"""JSON bodies, read lazily: only the fields that a dialect names are looked at, and only when it needs their values."""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar

import msgspec

from picker.requests.errors import BadRequest

MOST_LENIENT_BYTES = 1 << 20
"""Of a body that only the lenient reader may understand; it is five times slower than the strict one."""

_MOST_TOKENS = 1 << 32
_Fields = TypeVar("_Fields", bound=msgspec.Struct)


def fields(kind: type[_Fields], body: bytes) -> _Fields:
    """The fields that `kind`, a struct of `msgspec.Raw`, names. Raises BadRequest for what is no JSON object."""
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


def text(raw: msgspec.Raw) -> str:
    """The string, or "" where there is none."""
    return value(raw, str) or ""


def count(raw: msgspec.Raw, at_least: int = 1) -> int | None:
    """A whole number within reason, or None. 1024.0 counts: some clients have no integers."""
    number = value(raw, float)
    return int(number) if number is not None and at_least <= number < _MOST_TOKENS and number.is_integer() else None


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
