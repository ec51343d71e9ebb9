"""Compressed bodies, unpacked for our own eyes: the worker gets the bytes that the client sent.

gzip, deflate, br and zstd. Whatever else (compress), and whatever does not unpack cleanly within the bound, says
nothing to us: such a request is placed by load.
"""

from __future__ import annotations

import zlib

import brotli
import zstandard

MOST_BYTES = 16 << 20
"""Unpacked. deflate packs up to 1,000 : 1, br and zstd far more, so a few bytes may ask for gigabytes."""

MOST_LAYERS = 2
MOST_MEMBERS = 64
_GZIP = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_BYTES = 8 << 20
"""As RFC 9659 bounds it for HTTP."""
_ZSTD_PIECE_BYTES = 256
"""Unpacked at a time: at most 8 MB come of them, since a block of 4 bytes can stand for 128 kB."""


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
            case "br":
                return _br(body, most_bytes)
            case "zstd":
                return _frames(body, most_bytes)
    except (zlib.error, brotli.error, zstandard.ZstdError):
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


def _br(body: bytes, most_bytes: int) -> bytes | None:
    stream = brotli.Decompressor()
    # Its limit is one of blocks: it may give a little more.
    unpacked: bytes = stream.process(body, output_buffer_limit=most_bytes + 1)
    return unpacked if stream.is_finished() and len(unpacked) <= most_bytes else None


def _frames(body: bytes, most_bytes: int) -> bytes | None:
    """A zstd file is one or more frames, one after the other."""
    parts: list[bytes] = []
    left = most_bytes
    for _ in range(MOST_MEMBERS):
        frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
        for start in range(0, len(body), _ZSTD_PIECE_BYTES):
            parts.append(frame.decompress(body[start : start + _ZSTD_PIECE_BYTES]))
            left -= len(parts[-1])
            if left < 0:
                return None
            if frame.eof:
                break
        if not frame.eof:
            return None
        if not (body := frame.unused_data + body[start + _ZSTD_PIECE_BYTES :]):
            return b"".join(parts)
    return None
