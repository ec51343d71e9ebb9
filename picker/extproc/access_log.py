"""Envoy's access log over gRPC: what became of each request, told in batches after the fact."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from picker.extproc.wire.names import DESTINATION

_MOST_DETAILS = 128
SERVICE = "envoy.service.accesslog.v3.AccessLogService"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished exchange. `picked` is the ordered list that we gave ("" if none), `served` who answered last.

    `is_cancelled`: the client went away. `is_broken`: the worker did, in the middle of its answer. `details` is Envoy's
    word for how the response came about.
    """

    status: int
    attempts: int
    picked: tuple[str, ...]
    served: str
    request_id: str = ""
    is_cancelled: bool = False
    is_broken: bool = False
    details: str = ""


class AccessLog:
    """Receives `StreamAccessLogs` and hands on each exchange."""

    def __init__(self, on_outcome: Callable[[Outcome], None]):
        self._on_outcome = on_outcome

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """To be added to a server."""
        method = grpc.stream_unary_rpc_method_handler(
            self._receive,
            als_pb2.StreamAccessLogsMessage.FromString,
            als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": method})

    async def _receive(
        self, messages: AsyncIterator[als_pb2.StreamAccessLogsMessage], context: Any
    ) -> als_pb2.StreamAccessLogsResponse:
        async for message in messages:
            for entry in message.http_logs.log_entry:
                self._on_outcome(_outcome(entry))
        return als_pb2.StreamAccessLogsResponse()


def _outcome(entry: accesslog_pb2.HTTPAccessLogEntry) -> Outcome:
    common = entry.common_properties
    address = common.upstream_remote_address.socket_address
    host = f"[{address.address}]" if ":" in address.address else address.address
    picked = entry.request.request_headers.get(DESTINATION, "")
    return Outcome(
        status=entry.response.response_code.value,
        attempts=common.upstream_request_attempt_count,
        picked=tuple(picked.split(",")) if picked else (),
        served=f"{host}:{address.port_value}" if host else "",
        request_id=entry.request.request_id,
        is_cancelled=common.response_flags.downstream_connection_termination,
        # Envoy 1.36 to 1.40; what is behind it in braces differs (test_broken_streams).
        is_broken=entry.response.response_code_details.startswith("upstream_reset_after_response_started"),
        details=entry.response.response_code_details[:_MOST_DETAILS],
    )
