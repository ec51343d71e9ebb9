"""The model of a body that holds too much to be parsed, found from its ends.

Clients write scalars (`model`, `stream`, `max_tokens`) before or behind what is long. From the body's first bracket on,
or back from its last, whatever is a scalar belongs to the outermost object; where anything else comes first, nothing
is found.
"""

from __future__ import annotations

import re

WINDOW_BYTES = 1 << 12
"""Looked at from either end."""

_STRING = rb'"(?:[^"\\]|\\.)*+"'
_SCALAR = rb"(?:%b|[-+.\w]++)" % _STRING
_PAIR = rb"\s*+%b\s*+:\s*+%b\s*+" % (_STRING, _SCALAR)
_OTHER = rb'(?!\s*+"model"\s*+:)' + _PAIR
_MODEL = rb'\s*+"model"\s*+:\s*+(%b)\s*+' % _STRING

_FIRST = re.compile(rb"\s*+\{(?:%b,)*?%b[,}]" % (_PAIR, _MODEL), re.DOTALL)
_LAST = re.compile(rb"[,{]%b(?:,%b)*+\}\s*+\Z" % (_MODEL, _OTHER), re.DOTALL)


def model_span(body: bytes) -> slice | None:
    """Where the value of the outermost `model` stands, a string with its quotes; None where that takes a parser.

    One that is repeated in between is overlooked: the worker may find that it has no such model.
    """
    offset = max(0, len(body) - WINDOW_BYTES)
    if last := _LAST.search(body, offset):
        return slice(*last.span(1))
    first = _FIRST.match(body, 0, WINDOW_BYTES)
    return slice(*first.span(1)) if first else None
