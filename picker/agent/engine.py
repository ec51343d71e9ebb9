"""Asks one server how it is, over its HTTP API, in the way of its kind (`agent.engines`)."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from picker.agent.engines import AUTO, KINDS, OTHER, kind_by_metrics, kind_of
from picker.agent.engines.kind import About, EngineKind, EventSource, Unknown
from picker.agent.http import Server
from picker.agent.metrics import Metrics, Unreadable, Which

T = TypeVar("T")


_NO_SUCH_PAGE = (404, 405, 501)


class Reach(enum.Enum):
    """What GET /health came to."""

    UP = "up"
    REFUSED = "cannot connect"
    FAILING = "/health says that the engine is dead"
    SILENT = "/health does not answer in time"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Bounds of one request. vLLM 0.32's /metrics page has 74 kB with one adapter.

    `about_every_s`: how often what hardly ever changes is asked for.
    """

    timeout_s: float = 1.0
    response_bytes: int = 4 * 2**20
    about_every_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Models:
    """What an engine serves: names of the base model, the first of which is the engine's own; its adapters.

    `root`: the folder or name that it was loaded from.
    """

    names: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    context_limit_tokens: int = 0
    root: str = ""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One look at an engine. Parts that could not be read are as in the look before, or None; metrics are None."""

    reach: Reach
    metrics: Metrics | None = None
    models: Models | None = None
    version: str = ""
    source: EventSource | None = None
    kind: str = ""
    loads: str | None = None
    kv_capacity_tokens: int = 0
    is_paused: bool = False

    @property
    def is_mute(self) -> bool:
        """Whether it is there and nothing could be read in time, as from one whose API server is busy with prompts."""
        is_unread = self.metrics is None and self.models is None
        return is_unread and self.reach in (Reach.SILENT, Reach.UP)


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None
    max_model_len: int | None = None
    owned_by: str = ""
    root: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Paused(msgspec.Struct):
    is_paused: bool


class Engine:
    """One engine of one server. `which`: if it has several. `kind`: its kind's name, or "auto"."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        which: Which | None = None,
        settings: EngineSettings | None = None,
        kind: str = AUTO,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._which = which or Which()
        self._settings = settings or EngineSettings()
        self.server = Server(client, url, headers or {}, self._settings.response_bytes)
        self._kind = KINDS.get(kind)
        self._is_kind_set = self._kind is not None
        self._last = EngineStatus(Reach.REFUSED)
        self._about = About()
        self._metrics_page = ""
        self._health_at = self._about_at = float("-inf")
        self._has_paused_page = True

    @property
    def kind(self) -> EngineKind:
        """As far as it is known."""
        return self._kind or OTHER

    async def probe(self) -> EngineStatus:
        """Takes at most three timeouts. Raises nothing for the server's sake."""
        if self._kind is None:
            await self._recognise()
        reach = await self._health()
        if reach is not Reach.UP:
            self._last = self._away(reach)
            return self._last
        metrics, models, about, is_paused = await asyncio.gather(
            self._metrics(), self._models(), self._read_about(), self._is_paused()
        )
        self._last = EngineStatus(
            reach,
            metrics,
            models or self._last.models,
            about.version,
            about.source,
            self.kind.name if self._kind else "",
            about.loads,
            about.kv_capacity_tokens,
            is_paused,
        )
        return self._last

    def _away(self, reach: Reach) -> EngineStatus:
        if reach is Reach.SILENT:
            return replace(self._last, reach=reach, metrics=None)
        # Another server may come back at this address.
        self._kind = self._kind if self._is_kind_set else None
        self._about, self._metrics_page, self._has_paused_page = About(), "", True
        self._health_at = self._about_at = float("-inf")
        return EngineStatus(reach)

    # -- health ------------------------------------------------------------------------------------------------------

    async def _health(self) -> Reach:
        now, rarely_s = time.monotonic(), self.kind.health_every_s
        is_due = now - self._health_at >= rarely_s
        path = "/health" if is_due or self._last.reach is not Reach.UP else "/v1/models"
        try:
            status, _ = await self.server.get(path, max(self._settings.timeout_s, self.kind.health_timeout_s))
        except httpx.ConnectError:
            return Reach.REFUSED
        except (httpx.HTTPError, TimeoutError):
            return Reach.SILENT
        if is_due:
            self._health_at = now
        # Servers of other makes have no such page, and that says nothing about them.
        return Reach.UP if status in (200, *_NO_SUCH_PAGE) or path != "/health" else Reach.FAILING

    async def _is_paused(self) -> bool:
        page = self.kind.paused_page
        if page is None or not self._has_paused_page:
            return False
        try:
            status, body = await self.server.get(page, self._settings.timeout_s)
        except (httpx.HTTPError, TimeoutError):
            return self._last.is_paused
        if status != 200:
            self._has_paused_page = False
            return False
        paused = _decoded(body, _Paused)
        return paused is not None and paused.is_paused

    # -- load --------------------------------------------------------------------------------------------------------

    async def _metrics(self) -> Metrics | None:
        pages = (self._metrics_page,) if self._metrics_page else self.kind.metrics_pages
        for path in pages:
            page = await self._read(path, max(self._settings.timeout_s, self.kind.metrics_timeout_s))
            try:
                metrics = None if page is None else self.kind.read_metrics(page, self._which)
            except Unreadable:
                continue
            if page is not None:
                self._metrics_page = path
                # An engine with requests takes many steps between two looks.
                return metrics or replace(self._last.metrics or Metrics(), running=0, waiting=0)
        self._metrics_page = ""
        return None

    # -- what it serves ----------------------------------------------------------------------------------------------

    async def _recognise(self) -> None:
        """Before anything else is asked: what costs one kind nothing may keep another one busy."""
        answer = await self._read_models()
        if answer is None or not answer.data:
            return
        self._kind = kind_of(answer.data[0].owned_by)
        if self._kind is None:
            # A name of the operator's own.
            self._kind = kind_by_metrics(await self._read("/metrics", self._settings.timeout_s) or b"") or OTHER

    async def _models(self) -> Models | None:
        answer = await self._read_models()
        return None if answer is None else _models(answer.data)

    async def _read_models(self) -> _Models | None:
        page = await self._read("/v1/models", self._settings.timeout_s)
        return None if page is None else _decoded(page, _Models)

    async def _read_about(self) -> About:
        if time.monotonic() - self._about_at < self._settings.about_every_s:
            return self._about
        host = urlsplit(self.server.url).netloc.rpartition("@")[2]
        about, is_heard = About(), True
        for path in self.kind.about_pages:
            try:
                status, page = await self.server.get(path, self._settings.timeout_s)
            except (httpx.HTTPError, TimeoutError):
                is_heard = False
                continue
            if status == 200:
                with contextlib.suppress(Unknown):
                    about = _merged(about, self.kind.read_about(path, page, self._which.rank, host))
            if about.version and about.source:
                break
        self._about = _merged(about, self._about)
        if is_heard:
            self._about_at = time.monotonic()
        return self._about

    async def _read(self, path: str, timeout_s: float) -> bytes | None:
        try:
            status, body = await self.server.get(path, timeout_s)
        except (httpx.HTTPError, TimeoutError):
            return None
        return body if status == 200 else None


def _decoded(body: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _merged(new: About, old: About) -> About:
    return About(
        new.version or old.version,
        new.source or old.source,
        new.loads or old.loads,
        new.kv_capacity_tokens or old.kv_capacity_tokens,
    )


def _models(entries: list[_Model]) -> Models:
    base = [entry for entry in entries if entry.parent is None]
    limits = [entry.max_model_len for entry in base if entry.max_model_len]
    return Models(
        tuple(entry.id for entry in base),
        tuple(entry.id for entry in entries if entry.parent is not None),
        min(limits, default=0),
        next((entry.root for entry in base if entry.root), ""),
    )
