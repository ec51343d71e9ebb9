"""What one peer may cost: the answers to RFC 9113 section 10.5, "Denial-of-Service Considerations"."""

from __future__ import annotations

import msgspec


class PeerLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a connection of the http2 transport may do; beyond it the connection ends, and that is counted by reason.

    handshake_s: until TLS and the greeting of HTTP/2 are over.
    stall_s: how long an answer may wait for a peer that does not read; then its stream is reset.
    max_header_bytes: of one request's headers, as they come; decoded they may be four times as long.
    stream_window_bytes: of a request that are on their way without our leave (flow control).
    resets_per_s: requests that the peer takes back before they are answered; in a burst ten times as many. Envoy does
    that when clients leave, and then to all of them at once.
    control_frames_per_s: frames that carry nothing (pings, settings, empty data); in a burst ten times as many.
    max_connections: of all peers together.
    """

    handshake_s: float = 10.0
    stall_s: float = 30.0
    max_header_bytes: int = 16 << 10
    stream_window_bytes: int = 1 << 20
    resets_per_s: float = 5_000.0
    control_frames_per_s: float = 1_000.0
    max_connections: int = 4_096


class Limits(PeerLimits, frozen=True, kw_only=True):
    """With those that hold whatever the transport is.

    max_streams: open at once on one connection.
    max_message_bytes: of one gRPC message.
    keepalive_s: a peer that is silent for so long is asked for a sign of life, and taken for gone after as long again.
    """

    max_streams: int = 40_000
    max_message_bytes: int = 65 << 20
    keepalive_s: float = 20.0
