"""A body as pieces: joined for whoever reads it, cut for Envoy, replaced by another one."""

from __future__ import annotations

from collections.abc import Iterator

from picker.extproc.events import RequestBody

MAX_PIECE_BYTES = 62_000
"""Of a body handed back. Envoy 1.40 takes 1 MiB, others refuse more than 64 KiB; the reference picker sends 62,000."""


def joined(pieces: list[RequestBody]) -> bytes:
    """All bytes; of one piece without a copy."""
    return pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)


def cut(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Pieces of at most MAX_PIECE_BYTES, each with whether it is the last; one empty piece of nothing."""
    if len(data) <= MAX_PIECE_BYTES:
        yield data, True
        return
    for start in range(0, len(data), MAX_PIECE_BYTES):
        yield data[start : start + MAX_PIECE_BYTES], start + MAX_PIECE_BYTES >= len(data)


def replaced(pieces: list[RequestBody], new_body: bytes | None) -> list[RequestBody]:
    """The pieces of another body: all of it in the first, the rest empty, so that each is still answered."""
    if new_body is None or not pieces:
        return pieces
    first, *rest = pieces
    return [
        RequestBody(new_body, first.end_of_stream, is_new=True),
        *(RequestBody(b"", piece.end_of_stream, is_new=True) for piece in rest),
    ]
