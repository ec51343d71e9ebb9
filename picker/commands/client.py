"""What the commands that ask a running picker share: where it is, how to be let in, and how its errors are told."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import grpc
import typer
from google.protobuf import json_format
from google.protobuf.message import Message

from picker.commands.options import taking
from picker.debug.v1 import debug_pb2_grpc

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object for each line.")]
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class _Where:
    """A debug port and what it wants, as the options of each command that asks a picker."""

    address: Annotated[
        str, typer.Option(envvar="PICKER_DEBUG", help="A picker's debug port (`debug.listen` of its configuration).")
    ] = "127.0.0.1:9190"
    token_file: Annotated[
        Path | None, typer.Option(envvar="PICKER_TOKEN_FILE", help="File with the token, where one is wanted.")
    ] = None
    ca: Annotated[
        Path | None, typer.Option(envvar="PICKER_CA", help="PEM file of the authority, where the port speaks TLS.")
    ] = None
    cert: Annotated[
        Path | None, typer.Option(help="PEM file with our certificate and key, where clients need one.")
    ] = None


class Client:
    """Calls of the debug service by name. Streams are without a deadline."""

    def __init__(self, stub: Any, metadata: tuple[tuple[str, str], ...]):
        self._stub = stub
        self._metadata = metadata

    def ask(self, method: str, request: Message) -> Any:
        """The answer to one call."""
        return getattr(self._stub, method)(request, metadata=self._metadata, timeout=_TIMEOUT_S)

    def watch(self, method: str, request: Message) -> Iterator[Any]:
        """The answers to one, as they come."""
        answers: Iterator[Any] = getattr(self._stub, method)(request, metadata=self._metadata)
        return answers


def asks(function: Callable[..., None]) -> Callable[..., None]:
    """Makes a command of a function that takes a `Client` first: it has the options that say which picker is asked."""

    @taking(_Where)
    @functools.wraps(function)
    def command(where: _Where, **options: Any) -> None:
        with _client(where) as asked:
            function(asked, **options)

    return command


@contextlib.contextmanager
def _client(where: _Where) -> Iterator[Client]:
    """Ends the command with what is wrong, where the picker refuses or does not answer."""
    try:
        token = where.token_file.read_text().strip() if where.token_file else ""
        with _channel(where) as channel:
            stub = debug_pb2_grpc.DebugStub(channel)  # type: ignore[no-untyped-call]
            yield Client(stub, (("authorization", f"Bearer {token}"),) if token else ())
    except grpc.RpcError as error:
        fail(_explain(error, where))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def as_json(message: Message) -> str:
    """One line. Fields have the names of the .proto file; those that are empty are there too."""
    return json_format.MessageToJson(
        message, indent=None, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def fail(text: str) -> NoReturn:
    """Ends the command."""
    typer.echo(f"picker: {text}", err=True)
    raise typer.Exit(2)


def _channel(where: _Where) -> grpc.Channel:
    if not where.ca:
        return grpc.insecure_channel(where.address)
    own = where.cert.read_bytes() if where.cert else None
    return grpc.secure_channel(where.address, grpc.ssl_channel_credentials(where.ca.read_bytes(), own, own))


def _explain(error: grpc.RpcError, where: _Where) -> str:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.UNAVAILABLE:
        return f"no picker answers at {where.address}; --address or PICKER_DEBUG says where its debug.listen is"
    return str(details)
