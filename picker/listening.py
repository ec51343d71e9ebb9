"""How a server of grpcio's begins to listen, whatever it serves."""

from __future__ import annotations

import grpc


async def listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
    """Binds to the address, in plain text without `credentials`, and starts. Raises OSError where the port is taken."""
    try:
        if credentials:
            server.add_secure_port(address, credentials)
        else:
            server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(str(error)) from None
    await server.start()
