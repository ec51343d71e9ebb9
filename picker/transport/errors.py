"""What a peer can do wrong, and what it is told (RFC 9113 sections 5.4 and 7; gRPC over HTTP2, "Errors")."""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """Why a stream or a connection is ended (RFC 9113 section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class Status(enum.IntEnum):
    """The gRPC statuses that the transport itself gives; a service may give any."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class Reason(enum.StrEnum):
    """What the peer did: the label under which it is counted."""

    NOT_HTTP2 = "not-http2"
    PROTOCOL = "protocol-error"
    COMPRESSION = "header-compression-error"
    FLOW_CONTROL = "flow-control-error"
    FRAME_TOO_LARGE = "frame-too-large"
    HEADERS_TOO_LARGE = "headers-too-large"
    CONTINUATION_FLOOD = "continuation-flood"
    RAPID_RESET = "rapid-reset"
    CONTROL_FLOOD = "control-flood"
    TOO_MANY_STREAMS = "too-many-streams"
    TOO_MANY_CONNECTIONS = "too-many-connections"
    MESSAGE_TOO_LARGE = "message-too-large"
    MESSAGE_CUT_OFF = "message-cut-off"
    COMPRESSED = "message-compressed"
    NO_ROOM = "no-room"
    STALLED = "stalled"
    HANDSHAKE_LATE = "handshake-late"
    SILENT = "silent"


class ConnectionFault(Exception):
    """Nothing that this peer sends can be trusted any more; the connection ends with GOAWAY."""

    def __init__(self, code: ErrorCode, reason: Reason):
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class StreamFault(Exception):
    """One stream is wrong; it ends with RST_STREAM and the others go on."""

    def __init__(self, code: ErrorCode, reason: Reason):
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class CallFault(Exception):
    """The stream is sound and the call is not; it ends with a gRPC status."""

    def __init__(self, status: Status, text: str, reason: Reason):
        super().__init__(status, text, reason)
        self.status, self.text, self.reason = status, text, reason


def protocol_error() -> ConnectionFault:
    """For what is against the protocol in a way that has no code of its own."""
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, Reason.PROTOCOL)
