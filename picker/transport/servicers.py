"""Runs services that were written for grpc.aio, each call in a task of its own: health, reflection, discovery.

What they use of grpc.aio's context is here: `read`, `write`, `abort` and the iterator of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog

from picker.transport.calls import Call, Open
from picker.transport.errors import Status

log = structlog.get_logger()

_EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs do not know it
_MOST_UNREAD_BYTES = 1 << 18
_OVERHEAD_BYTES = 64
"""Of each message that waits for a servicer. Beyond the former the peer may fill its window, and send no more."""


def find(handlers: Sequence[grpc.GenericRpcHandler[Any, Any]], path: str) -> Open | None:
    """Who answers calls of this path, among grpcio's handlers."""
    for handler in handlers:
        method = handler.service(_Details(path))  # type: ignore[arg-type]
        if method is not None:
            return lambda call: _ServicerCall(method, call)
    return None


@dataclass(frozen=True, slots=True)
class _Details:
    """What a generic handler wants to know of a call (`grpc.HandlerCallDetails`)."""

    method: str
    invocation_metadata: tuple[()] = ()


class _Aborted(Exception):
    """The servicer has ended its call."""


class _Unreadable(Exception):
    """Bytes that are no message of the method."""


class _ServicerCall:
    """A handler for the transport, a context for the servicer."""

    def __init__(self, method: Any, call: Call):
        self._method = method
        self._call = call
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread = 0
        self._is_held = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="grpc-call")

    # For the transport.

    def message(self, data: bytes) -> None:
        self._messages.put_nowait(data)
        self._unread += len(data) + _OVERHEAD_BYTES
        if self._unread > _MOST_UNREAD_BYTES and not self._is_held:
            self._is_held = True
            self._call.hold()

    def half_closed(self) -> None:
        self._messages.put_nowait(None)

    def no_room(self) -> None:
        self._call.finish(Status.RESOURCE_EXHAUSTED, "no room for what was sent")
        self._task.cancel()

    def ended(self) -> None:
        self._task.cancel()

    # For the servicer.

    async def read(self) -> Any:
        """The next message, or `grpc.aio.EOF`."""
        data = await self._messages.get()
        if data is None:
            self._messages.put_nowait(None)
            return _EOF
        self._unread -= len(data) + _OVERHEAD_BYTES
        if self._is_held and not self._unread:
            self._is_held = False
            self._call.resume()
        try:
            return self._method.request_deserializer(data) if self._method.request_deserializer else data
        except Exception:  # protobuf's error differs between its implementations
            raise _Unreadable from None

    async def write(self, message: Any) -> None:
        """One answer."""
        serialize = self._method.response_serializer
        self._call.send(serialize(message) if serialize else message)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: object = ()) -> NoReturn:
        """Ends the call with this status, and the servicer's work on it."""
        self._call.finish(code.value[0], details)
        raise _Aborted

    async def _run(self) -> None:
        try:
            await self._answer()
        except _Aborted:
            pass
        except _Unreadable:
            self._call.finish(Status.INTERNAL, "the request cannot be read")
        except Exception as error:
            log.error("servicer_failed", error=type(error).__name__)
            self._call.finish(Status.UNKNOWN, f"unexpected {type(error).__name__}")
        else:
            self._call.finish()

    async def _answer(self) -> None:
        method = self._method
        request = self._requests() if method.request_streaming else await self._only_request()
        answer = _behaviour(method)(request, self)
        if hasattr(answer, "__aiter__"):
            async for message in answer:
                await self.write(message)
            return
        message = await answer
        if not method.response_streaming:
            await self.write(message)

    async def _requests(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not _EOF:
            yield message

    async def _only_request(self) -> Any:
        request = await self.read()
        if request is _EOF:
            raise _Unreadable
        return request


def _behaviour(method: Any) -> Any:
    if method.request_streaming:
        return method.stream_stream if method.response_streaming else method.stream_unary
    return method.unary_stream if method.response_streaming else method.unary_unary
