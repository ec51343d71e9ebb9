"""Header blocks: requests read, responses written (RFC 9113 section 8.3, RFC 7541; gRPC over HTTP2, "Requests").

We announce a dynamic table of size 0. A block then means the same whenever it comes, and a proxy's streams all begin
with the same block: it is decoded once and remembered. It also leaves nothing for a compression bomb to refer to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from hpack import Decoder, Encoder, HPACKError, OversizedHeaderListError

from picker.transport.errors import ConnectionFault, ErrorCode, Reason, StreamFault
from picker.transport.messages import percent_encoded, timeout_s

_REMEMBERED = 1024
_MOST_REMEMBERED_BYTES = 1024
_EXPANSION = 4
"""How much longer than its block a list of headers may be; Huffman's code alone makes it up to 1.6 times as long."""
_CONNECTION_SPECIFIC = frozenset({"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"})
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request's headers say. `http_status`: 200, or the answer where this is no gRPC request.

    `is_badly_timed`: there is a timeout, and it makes no sense.
    """

    path: str
    http_status: int = 200
    timeout_s: float | None = None
    is_badly_timed: bool = False


class HeaderReader:
    """Decodes the blocks of one connection, in the order in which they come."""

    __slots__ = ("_decoder", "_is_shrunk")

    def __init__(self, max_block_bytes: int):
        self._decoder: Decoder = Decoder(_EXPANSION * max_block_bytes)
        self._is_shrunk = False

    def shrink(self) -> None:
        """The peer knows by now that there is no dynamic table.

        It should say so in its next block (RFC 7541 section 4.2); one that has never used the table may not.
        """
        self._decoder.max_allowed_table_size = self._decoder.header_table_size = 0
        self._is_shrunk = True

    def read(self, block: bytes) -> RequestHead:
        """A request's head. Raises ConnectionFault, StreamFault."""
        # Until its first block after our settings a peer may use the table that HTTP/2 begins with.
        if self._is_shrunk and len(block) <= _MOST_REMEMBERED_BYTES:
            return _remembered(block)
        return _head(_decoded(self._decoder, block))

    def skip(self, block: bytes) -> None:
        """Decodes a block that nobody wants, for what it does to those after it. Raises ConnectionFault."""
        _decoded(self._decoder, block)


@lru_cache(_REMEMBERED)
def _remembered(block: bytes) -> RequestHead:
    decoder = Decoder(_EXPANSION * _MOST_REMEMBERED_BYTES)
    decoder.max_allowed_table_size = decoder.header_table_size = 0
    return _head(_decoded(decoder, block))


def _decoded(decoder: Decoder, block: bytes) -> Headers:
    try:
        pairs = decoder.decode(block, raw=True)
    except OversizedHeaderListError:
        raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, Reason.HEADERS_TOO_LARGE) from None
    except HPACKError:
        raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, Reason.COMPRESSION) from None
    # Values may be any bytes; what is not ASCII is no concern of ours.
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in pairs)


def _head(headers: Headers) -> RequestHead:
    regular = tuple(pair for pair in headers if not pair[0].startswith(":"))
    pseudo = dict(headers[: len(headers) - len(regular)])
    if not _is_well_formed(headers, pseudo, regular):
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
    named = dict(regular)
    timeout = named.get("grpc-timeout")
    seconds = None if timeout is None else timeout_s(timeout)
    return RequestHead(
        path=pseudo[":path"],
        http_status=_http_status(pseudo[":method"], named.get("content-type", "")),
        timeout_s=seconds,
        is_badly_timed=timeout is not None and seconds is None,
    )


def _is_well_formed(headers: Headers, pseudo: dict[str, str], regular: Headers) -> bool:
    """RFC 9113 sections 8.2 and 8.3.1: pseudo-headers first and once each, nothing about the connection."""
    return (
        len(pseudo) + len(regular) == len(headers)
        and {":method", ":scheme", ":path"} <= pseudo.keys() <= {":method", ":scheme", ":path", ":authority"}
        and bool(pseudo[":path"])
        and all(_is_allowed(name, value) for name, value in regular)
    )


def _is_allowed(name: str, value: str) -> bool:
    if name == "te":
        return value == "trailers"
    return bool(name) and name == name.lower() and name not in _CONNECTION_SPECIFIC


def _http_status(method: str, content_type: str) -> int:
    if method != "POST":
        return 405
    return 200 if content_type.startswith("application/grpc") else 415


# Never indexed: a block then depends on nothing that was sent before, and can be made once for all connections.
def _block(headers: Iterable[tuple[str, str]]) -> bytes:
    return Encoder().encode([(name, value, True) for name, value in headers], huffman=False)


_HEAD = ((":status", "200"), ("content-type", "application/grpc"), ("grpc-accept-encoding", "identity"))
RESPONSE = _block(_HEAD)
"""The head of every response that carries a message."""


@lru_cache(_REMEMBERED)
def trailers(status: int, text: str) -> bytes:
    """The end of a response."""
    return _block(_trailers(status, text))


@lru_cache(_REMEMBERED)
def trailers_only(status: int, text: str) -> bytes:
    """A response that carries no message: head and end in one."""
    return _block((*_HEAD, *_trailers(status, text)))


@lru_cache(_REMEMBERED)
def http_refusal(http_status: int) -> bytes:
    """The answer to what is no gRPC request."""
    return _block([(":status", str(http_status)), ("content-length", "0")])


def _trailers(status: int, text: str) -> list[tuple[str, str]]:
    message = [("grpc-message", percent_encoded(text))] if text else []
    return [("grpc-status", str(status)), *message]
