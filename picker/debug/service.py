"""The gRPC debug service: who is there, what was decided and why, what would be decided; and the few things to change.

What may be asked is in protos/picker/debug/v1/debug.proto. Errors name what was asked for and what to do.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import msgspec
from google.protobuf import json_format

from picker.debug.fleet import State, fleet
from picker.debug.v1 import debug_pb2 as pb
from picker.debug.v1 import debug_pb2_grpc
from picker.events.decided import Decided
from picker.events.record import Record
from picker.events.recorder import Recorder
from picker.extproc.actions import Pick
from picker.fleet.view import View
from picker.placing import Question
from picker.prompts.prefix import PrefixChain
from picker.requests.errors import BadRequest

SERVICE = "picker.debug.v1.Debug"
LEVELS = ("debug", "info", "warning", "error")
_LEAST_EVERY_S = 0.2
_TAIL_QUEUE = 1000
_MOST_TAILED = 1000
_DRAIN_EVERY_S = 0.5
_NOT_COPIED = ("content-length", "content-encoding")
Context = grpc.aio.ServicerContext[Any, Any]


class Picks(Protocol):
    """Who decides (`picker.picking.Picker`)."""

    async def what_if(self, wanted: Pick, question: Question) -> Decided: ...  # noqa: D102
    async def look_up(self, wanted: Pick) -> tuple[str, PrefixChain]: ...  # noqa: D102


class Cordoning(Protocol):
    """Who cordons (`picker.cordons.Cordons`)."""

    async def cordon(self, worker: str, note: str) -> bool: ...  # noqa: D102
    async def uncordon(self, worker: str) -> bool: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service looks at. `config` gives YAML without secrets."""

    view: View
    recorder: Recorder
    picks: Picks
    cordons: Cordoning
    state: State
    config: Callable[[], str]
    set_log_level: Callable[[str], None]


class DebugService(debug_pb2_grpc.DebugServicer):
    """One picker's."""

    def __init__(self, parts: Parts):
        self._parts = parts

    async def GetFleet(self, request: pb.GetFleetRequest, context: Context) -> pb.Fleet:  # noqa: D102
        return self.fleet()

    async def WatchFleet(self, request: pb.WatchFleetRequest, context: Context) -> AsyncIterator[pb.Fleet]:  # noqa: D102
        while True:
            yield self.fleet()
            await asyncio.sleep(max(_LEAST_EVERY_S, request.every_s or 1.0))

    async def Explain(self, request: pb.ExplainRequest, context: Context) -> pb.ExplainResponse:  # noqa: D102
        found = self.find(request.id)
        if not found:
            kept = len(self._parts.recorder.ring)
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"none of the last {kept} decisions of this picker has this id; other pickers of the pool have others, "
                "and events.ring says how many are kept",
            )
        return pb.ExplainResponse(decisions=found)

    async def WhatIf(self, request: pb.WhatIfRequest, context: Context) -> pb.Decision:  # noqa: D102
        question = Question(
            request.policy or None,
            request.sequence if request.HasField("sequence") else None,
            request.ties if request.HasField("ties") else None,
            frozenset(request.avoid),
        )
        subset = frozenset(request.subset) or None
        imagined = await _understood(self._parts.picks.what_if(_wanted(request.request, subset), question), context)
        return message(imagined.record())

    async def LookUpPrefix(self, request: pb.Request, context: Context) -> pb.Prefix:  # noqa: D102
        model, prefix = await _understood(self._parts.picks.look_up(_wanted(request, None)), context)
        view = self._parts.view
        hits = view.hit_blocks(prefix.blocks)
        roster = view.roster()
        holdings = [
            pb.Holding(
                worker=roster[slot].worker,
                endpoint=roster[slot].endpoint,
                tokens=int(hits[slot]) * prefix.block_tokens,
            )
            for slot in sorted(roster, key=lambda slot: (-hits[slot], roster[slot].worker))
        ]
        return pb.Prefix(
            model=model,
            prompt_tokens=prefix.prompt_tokens,
            rung=prefix.rung.value,
            blocks=len(prefix.blocks),
            block_tokens=prefix.block_tokens,
            holdings=holdings,
        )

    async def Tail(self, request: pb.TailRequest, context: Context) -> AsyncIterator[pb.Decision]:  # noqa: D102
        recorder = self._parts.recorder
        for decision in self.last(request):
            yield decision
        if request.past_only:
            return
        heard: deque[Decided] = deque(maxlen=_TAIL_QUEUE)
        more = asyncio.Event()

        def hear(decided: Decided) -> None:
            heard.append(decided)
            more.set()

        recorder.on_ended.append(hear)
        try:
            while True:
                await more.wait()
                more.clear()
                while heard:
                    if _passes(record := heard.popleft().record(), request):
                        yield message(record)
        finally:
            recorder.on_ended.remove(hear)

    async def GetConfig(self, request: pb.GetConfigRequest, context: Context) -> pb.Config:  # noqa: D102
        return pb.Config(yaml=self._parts.config())

    async def Cordon(self, request: pb.CordonRequest, context: Context) -> pb.CordonResponse:  # noqa: D102
        name = await self._known(request.worker, context)
        is_shared = await self._parts.cordons.cordon(name, request.note)
        return pb.CordonResponse(cordoned=sorted(self._parts.view.cordons), is_shared=is_shared)

    async def Uncordon(self, request: pb.CordonRequest, context: Context) -> pb.CordonResponse:  # noqa: D102
        # One that is gone can be uncordoned as well.
        cordoned = request.worker in self._parts.view.cordons
        name = request.worker if cordoned else await self._known(request.worker, context)
        is_shared = await self._parts.cordons.uncordon(name)
        return pb.CordonResponse(cordoned=sorted(self._parts.view.cordons), is_shared=is_shared)

    async def Drain(self, request: pb.DrainRequest, context: Context) -> AsyncIterator[pb.DrainProgress]:  # noqa: D102
        name = await self._known(request.worker, context)
        await self._parts.cordons.cordon(name, request.note)
        while True:
            progress = self._progress(name)
            yield progress
            if progress.is_done:
                return
            await asyncio.sleep(_DRAIN_EVERY_S)

    async def SetLogLevel(self, request: pb.LogLevel, context: Context) -> pb.LogLevel:  # noqa: D102
        if request.level not in LEVELS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"level is one of {', '.join(LEVELS)}")
        self._parts.set_log_level(request.level)
        return request

    def fleet(self) -> pb.Fleet:
        """All workers, and how this picker is, now."""
        return fleet(self._parts.view, self._parts.state, time.monotonic(), time.time())

    def find(self, name: str) -> list[pb.Decision]:
        """The decisions with this id or request id, oldest first."""
        return [message(each.record()) for each in self._parts.recorder.ring.find(name)]

    def last(self, request: pb.TailRequest) -> list[pb.Decision]:
        """The last ones that pass, oldest first."""
        found: list[pb.Decision] = []
        for decided in self._parts.recorder.ring.newest():
            if len(found) >= min(request.last, _MOST_TAILED):
                break
            if _passes(record := decided.record(), request):
                found.append(message(record))
        return found[::-1]

    async def _known(self, worker: str, context: Context) -> str:
        """The name of a worker that is named, or whose endpoint is."""
        for facts in self._parts.view.roster().values():
            if worker in (facts.worker, facts.endpoint):
                return facts.worker
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such worker; picker workers lists them")
        raise AssertionError("abort raises")

    def _progress(self, name: str) -> pb.DrainProgress:
        view = self._parts.view
        slots = [slot for slot, facts in view.roster().items() if facts.worker == name]
        books = view.inflight.outstanding(time.monotonic())
        in_flight = sum(int(books.requests[slot]) for slot in slots)
        running = sum(int(view.running[slot] + view.waiting[slot]) for slot in slots)
        return pb.DrainProgress(worker=name, in_flight=in_flight, running=running, is_done=in_flight + running == 0)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets only those in who send the token that is in a file, which is read each time."""

    def __init__(self, file: Path):
        self._file = file

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Of grpc.aio."""
        sent = dict(details.invocation_metadata).get("authorization", "")
        if is_token(sent, self._file):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


def is_token(sent: str | bytes, file: Path) -> bool:
    """Whether this is an `authorization` header's value with the token in the file; with none in it, nothing is."""
    try:
        token = file.read_text().strip()
    except OSError:
        return False
    data = sent if isinstance(sent, bytes) else sent.encode()
    return bool(token) and hmac.compare_digest(data, f"Bearer {token}".encode())


async def _refuse(_: object, context: Context) -> None:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED, "send the token of debug.token_file: authorization: Bearer TOKEN"
    )


def message(record: Record) -> pb.Decision:
    """A record as the service tells it; the fields have the same names."""
    return json_format.ParseDict(msgspec.to_builtins(record), pb.Decision(), ignore_unknown_fields=True)


async def _understood(answer: Awaitable[Any], context: Context) -> Any:
    try:
        return await answer
    except (BadRequest, ValueError) as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    except TimeoutError:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the request could not be read in time")


def _wanted(request: pb.Request, subset: frozenset[str] | None) -> Pick:
    headers = {name.lower(): value for name, value in request.headers.items() if name.lower() not in _NOT_COPIED}
    path = {":method": "POST", ":path": request.path or "/v1/chat/completions", "content-type": "application/json"}
    return Pick({**headers, **path}, request.body.encode(), True, subset)


def _passes(record: Record, wanted: pb.TailRequest) -> bool:
    found = (record.verdict, record.reason, record.model, record.tenant, record.outcome.end)
    asked = (wanted.verdict, wanted.reason, wanted.model, wanted.tenant, wanted.end)
    if any(want and want != have for want, have in zip(asked, found, strict=True)):
        return False
    return not wanted.worker or (bool(record.candidates) and wanted.worker in (record.worker, record.endpoints[0]))
