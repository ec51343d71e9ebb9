"""The debug port: the debug service, health and reflection, on grpcio whatever carries the rest."""

from __future__ import annotations

from pathlib import Path

import grpc

from picker.debug.health import add_reflection
from picker.debug.service import SERVICE, DebugService, TokenCheck
from picker.debug.settings import Debug
from picker.debug.v1 import debug_pb2_grpc
from picker.listening import listen

_MOST_MESSAGE_BYTES = 64 << 20


class DebugPort:
    """Listens at `debug.listen`, which must be set. `credentials` are None for plain text."""

    def __init__(self, settings: Debug, service: DebugService, credentials: grpc.ServerCredentials | None):
        self._address = settings.listen or ""
        self._credentials = credentials
        checks = [TokenCheck(Path(settings.token_file))] if settings.token_file else []
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", _MOST_MESSAGE_BYTES)]
        self._server = grpc.aio.server(interceptors=checks, options=options)
        debug_pb2_grpc.add_DebugServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        # The stubs are older than `add_registered_method_handlers`.
        add_reflection(self._server, (SERVICE,))  # type: ignore[arg-type]

    async def start(self) -> None:
        """Raises OSError where the port is taken."""
        await listen(self._server, self._address, self._credentials)

    async def stop(self) -> None:
        """At once: those who watch never end by themselves."""
        await self._server.stop(0)
