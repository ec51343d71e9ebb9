"""The floor: the least that an ext_proc service on grpc.aio can do. It reads nothing and answers with ready-made bytes.

python -m benchmarks.extproc.bare 127.0.0.1:9002 127.0.0.1:8001,127.0.0.1:8002
"""

from __future__ import annotations

import sys
from itertools import cycle
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from picker.extproc.actions import SendBodyPick
from picker.extproc.service import SERVICE
from picker.extproc.wire.building import build

# The kind of a message is its first protobuf field, and that field's tag the first byte.
_REQUEST_BODY = 0x22
_ANSWERS = {
    0x12: pb.ProcessingResponse(request_headers=pb.HeadersResponse()).SerializeToString(),
    0x1A: pb.ProcessingResponse(response_headers=pb.HeadersResponse()).SerializeToString(),
    0x3A: pb.ProcessingResponse(response_trailers=pb.TrailersResponse()).SerializeToString(),
}


async def serve(listen: str, endpoints: list[str]) -> None:
    """Answers Envoy's BUFFERED conversations until killed; the endpoints take turns."""
    picks = cycle([build(SendBodyPick((endpoint,))) for endpoint in endpoints])

    async def process(_: object, context: Any) -> None:
        while isinstance(data := await context.read(), bytes):
            await context.write(next(picks) if data[0] == _REQUEST_BODY else _ANSWERS[data[0]])

    method = grpc.stream_stream_rpc_method_handler(process, None, None)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": method}),))
    server.add_insecure_port(listen)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2].split(",")))
