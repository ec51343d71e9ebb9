"""Asks one vLLM server how it is, over its HTTP API."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from picker.agent.metrics import Metrics, Unreadable, parse

_WILDCARDS = ("*", "0.0.0.0", "[::]")
T = TypeVar("T")


class Reach(enum.Enum):
    """What GET /health came to."""

    UP = "up"
    REFUSED = "cannot connect"
    FAILING = "/health says that the engine is dead"
    SILENT = "/health does not answer in time"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of one request. vLLM 0.32's /metrics page has 74 kB with one adapter."""

    timeout_s: float = 1.0
    response_bytes: int = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Models:
    """What an engine serves: names of the base model, the first of which is the engine's own; its adapters."""

    names: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    context_limit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZMQ endpoints of one rank's KV events. `replay` is None where missed events cannot be had."""

    events: str
    replay: str | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One look at an engine. Parts that could not be read are as in the look before, or None."""

    reach: Reach
    metrics: Metrics | None = None
    models: Models | None = None
    version: str = ""
    source: EventSource | None = None


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Version(msgspec.Struct):
    version: str


class _Source(msgspec.Struct):
    endpoint: str
    enable_kv_cache_events: bool = True
    publisher: str | None = "zmq"
    replay_endpoint: str | None = None


class Engine:
    """One rank of one server. `url` is its base, `rank` None if it has only one."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, rank: int | None = None, settings: EngineSettings = EngineSettings()
    ) -> None:
        self._client = client
        self._url = url.rstrip("/")
        self._rank = rank
        self._settings = settings
        self._last = EngineStatus(Reach.REFUSED)

    async def probe(self) -> EngineStatus:
        """Takes at most two timeouts. Raises nothing for the server's sake."""
        reach = await self._health()
        if reach is not Reach.UP:
            known = self._last if reach is Reach.SILENT else EngineStatus(reach)
            self._last = EngineStatus(reach, None, known.models, known.version, known.source)
            return self._last
        metrics, models, version, source = await asyncio.gather(
            self._metrics(), self._models(), self._version(), self._event_source()
        )
        self._last = EngineStatus(reach, metrics, models or self._last.models, version, source)
        return self._last

    async def _health(self) -> Reach:
        try:
            status, _ = await self._get("/health")
        except httpx.ConnectError:
            return Reach.REFUSED
        except (httpx.HTTPError, TimeoutError):
            return Reach.SILENT
        return Reach.UP if status == 200 else Reach.FAILING

    async def _metrics(self) -> Metrics | None:
        page = await self._read("/metrics")
        try:
            return None if page is None else parse(page.decode(errors="replace"), self._rank)
        except Unreadable:
            return None

    async def _models(self) -> Models | None:
        answer = await self._read_json("/v1/models", _Models)
        return None if answer is None else _models(answer.data)

    async def _version(self) -> str:
        # A server that has answered once is not asked again, as long as it stays.
        if self._last.version:
            return self._last.version
        answer = await self._read_json("/version", _Version)
        return answer.version if answer else ""

    async def _event_source(self) -> EventSource | None:
        """Where vLLM says that it publishes; older versions have no such page."""
        if self._last.source:
            return self._last.source
        answer = await self._read_json("/kv_event_sources", dict[str, _Source])
        if not answer:
            return None
        source = answer.get(str(self._rank)) if self._rank is not None else next(iter(answer.values()))
        if source is None or not source.enable_kv_cache_events or source.publisher != "zmq":
            return None
        host = urlsplit(self._url).netloc.rpartition("@")[2]
        replay = source.replay_endpoint and reachable(source.replay_endpoint, host)
        return EventSource(reachable(source.endpoint, host), replay or None)

    async def _read_json(self, path: str, kind: type[T]) -> T | None:
        body = await self._read(path)
        try:
            return None if body is None else msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    async def _read(self, path: str) -> bytes | None:
        try:
            status, body = await self._get(path)
        except (httpx.HTTPError, TimeoutError):
            return None
        return body if status == 200 else None

    async def _get(self, path: str) -> tuple[int, bytes]:
        """Raises httpx.HTTPError, also for an answer beyond the bound, and TimeoutError."""
        async with (
            asyncio.timeout(self._settings.timeout_s),
            self._client.stream("GET", self._url + path) as response,
        ):
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self._settings.response_bytes:
                    raise httpx.HTTPError(f"{path} answers with more than {self._settings.response_bytes} bytes")
            return response.status_code, bytes(body)


def reachable(endpoint: str, host: str) -> str:
    """The address to connect to for one that a server binds: `tcp://*:5557` is on every interface of `host`[:port]."""
    scheme, _, address = endpoint.partition("://")
    bound, _, port = address.rpartition(":")
    if scheme != "tcp" or bound not in _WILDCARDS:
        return endpoint
    name = host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return f"tcp://{name}:{port}"


def _models(entries: list[_Model]) -> Models:
    base = [entry for entry in entries if entry.parent is None]
    limits = [entry.max_model_len for entry in base if entry.max_model_len]
    return Models(
        tuple(entry.id for entry in base),
        tuple(entry.id for entry in entries if entry.parent is not None),
        min(limits, default=0),
    )
