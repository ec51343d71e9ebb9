"""`picker health`: asks a picker how it is, as probes of containers do."""

from __future__ import annotations

from typing import Annotated

import typer


def health(
    address: Annotated[str, typer.Option(help="The picker's `health` or `listen`, in plain text.")] = "127.0.0.1:9003",
    service: Annotated[
        str, typer.Option(help="readiness (traffic may come), liveness (it runs), prefix-prediction, ...")
    ] = "readiness",
    timeout: Annotated[float, typer.Option(help="Seconds.", min=0.01)] = 2.0,
) -> None:
    """Ask a picker's gRPC health service. Exit code 0 for SERVING, 1 for anything else."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=timeout
            )
        except grpc.RpcError as error:
            typer.echo(f"picker: {address}: {service}: {error.code().name}", err=True)
            raise typer.Exit(1) from None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    typer.echo(status)
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        raise typer.Exit(1)
