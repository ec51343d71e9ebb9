"""What Envoy sends to its ext_proc server for one request, as bytes on the wire: BUFFERED body, trailers asked for."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hpack import Encoder

from picker.extproc.service import METHOD
from picker.transport import frames
from picker.transport.frames import ACK, END_HEADERS, END_STREAM, FrameType, Setting

_BUFFERED = 2
_SERVED = "10.0.0.1:8000"
REQUEST = {
    ":authority": "llm.example",
    ":path": "/v1/chat/completions",
    ":method": "POST",
    ":scheme": "http",
    "content-type": "application/json",
    "accept": "application/json",
    "user-agent": "OpenAI/Python 2.9.0",
    "x-forwarded-proto": "http",
}
_CALL = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "picker"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
_OPENING = Encoder().encode([(*pair, True) for pair in _CALL])
_WINDOW = 256 << 20
GREETING = b"".join(
    (
        frames.PREFACE,
        frames.settings({Setting.HEADER_TABLE_SIZE: 0, Setting.INITIAL_WINDOW_SIZE: _WINDOW}),
        frames.window_update(0, frames.LARGEST_WINDOW - frames.DEFAULT_WINDOW),
        frames.frame(FrameType.SETTINGS, ACK, 0),
    )
)
"""The beginning of a connection, with windows that last for all that is measured."""


def exchange(number: int, body: bytes) -> Iterator[bytes]:
    """What is read for request `number`, piece by piece; the next comes when the last has been answered."""
    stream_id = 2 * number + 1
    opening = frames.frame(FrameType.HEADERS, END_HEADERS, stream_id, _OPENING)
    yield opening + _data(stream_id, _request_headers(number, len(body)))
    yield _data(stream_id, pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    yield _data(stream_id, _response_headers())
    yield frames.frame(FrameType.DATA, END_STREAM, stream_id)


def _request_headers(number: int, size: int) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    message.protocol_config.request_body_mode = _BUFFERED
    for name, value in {**REQUEST, "x-request-id": f"request-{number}", "content-length": str(size)}.items():
        _add(message.request_headers, name, value)
    return message


def _response_headers() -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    _add(message.response_headers, ":status", "200")
    _add(message.response_headers, "content-type", "application/json")
    message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = _SERVED
    return message


def _add(part: pb.HttpHeaders, name: str, value: str) -> None:
    header = part.headers.headers.add()
    header.key, header.raw_value = name, value.encode()


def _data(stream_id: int, message: pb.ProcessingRequest) -> bytes:
    """DATA frames with one gRPC message."""
    whole = message.SerializeToString()
    data = b"\0" + len(whole).to_bytes(4, "big") + whole
    return b"".join(
        frames.frame(FrameType.DATA, 0, stream_id, data[start : start + frames.MAX_FRAME_SIZE])
        for start in range(0, len(data), frames.MAX_FRAME_SIZE)
    )
