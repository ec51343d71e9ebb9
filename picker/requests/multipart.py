"""Form uploads (audio): of these only the model's name is read."""

from __future__ import annotations

import re

WINDOW_BYTES = 1 << 16
"""Looked at from either end: forms put their fields before the file, or after it."""

_MODEL = re.compile(
    rb'content-disposition:[^\r\n]*;\s*name="?model"?\s*\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n', re.IGNORECASE
)


def read_model(body: bytes) -> str | None:
    """The form's field `model`, None where it is not found or not text."""
    match = _MODEL.search(body[:WINDOW_BYTES]) or _MODEL.search(body[-WINDOW_BYTES:])
    try:
        return match[1].decode() if match else None
    except UnicodeDecodeError:
        return None
