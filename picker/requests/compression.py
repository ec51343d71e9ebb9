"""Compressed bodies, unpacked for our own eyes: the worker gets the bytes that the client sent.

gzip and deflate are what the standard library has. Whatever else (br, zstd, compress), and whatever does not unpack
cleanly within the bound, says nothing to us: such a request is placed by load.
"""

from __future__ import annotations

import zlib

MOST_BYTES = 16 << 20
"""Unpacked. deflate packs up to 1,000 : 1, so a few kilobytes may ask for gigabytes."""

MOST_LAYERS = 2
MOST_MEMBERS = 64
_GZIP = 16 + zlib.MAX_WBITS


def unpack(encoding: str, body: bytes, most_bytes: int = MOST_BYTES) -> bytes | None:
    """`encoding` is the value of content-encoding: a list, in the order in which the layers were put on."""
    layers = [name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")]
    if len(layers) > MOST_LAYERS:
        return None
    unpacked: bytes | None = body
    for name in reversed(layers):
        unpacked = None if unpacked is None else _layer(name, unpacked, most_bytes)
    return unpacked


def _layer(name: str, body: bytes, most_bytes: int) -> bytes | None:
    try:
        match name:
            case "gzip" | "x-gzip":
                return _members(body, most_bytes)
            case "deflate":
                return _deflate(body, most_bytes)
    except zlib.error:
        return None
    return None


def _members(body: bytes, most_bytes: int) -> bytes | None:
    """A gzip file is one or more members, one after the other."""
    parts: list[bytes] = []
    left = most_bytes
    for _ in range(MOST_MEMBERS):
        member = zlib.decompressobj(_GZIP)
        parts.append(member.decompress(body, left + 1))
        left -= len(parts[-1])
        if left < 0 or not member.eof:
            return None
        if not (body := member.unused_data):
            return b"".join(parts)
    return None


def _deflate(body: bytes, most_bytes: int) -> bytes | None:
    """HTTP's deflate is zlib's format (RFC 9110); some clients leave its wrapping out."""
    try:
        return _one(zlib.decompressobj(), body, most_bytes)
    except zlib.error:
        return _one(zlib.decompressobj(-zlib.MAX_WBITS), body, most_bytes)


def _one(stream: zlib._Decompress, body: bytes, most_bytes: int) -> bytes | None:
    unpacked = stream.decompress(body, most_bytes + 1)
    return unpacked if stream.eof and len(unpacked) <= most_bytes else None
