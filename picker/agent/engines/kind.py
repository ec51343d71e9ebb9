"""What is said about a kind of engine, and what a kind says about an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from picker.agent.metrics import Metrics, Which

_WILDCARDS = ("*", "0.0.0.0", "::", "[::]")


class Unknown(ValueError):
    """A page that this kind of engine does not write."""


@dataclass(frozen=True, slots=True)
class EventSource:
    """Where one rank's KV events come from: ZMQ endpoints, or with `is_polled` a page that hands each out once.

    `replay` is None where missed events cannot be had. `is_bound_here`: the engine connects to us.
    """

    events: str
    replay: str | None = None
    is_bound_here: bool = False
    is_polled: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a page says of one rank of an engine; the rest is left empty. `loads`: ZMQ endpoint of its load reports."""

    version: str = ""
    source: EventSource | None = None
    loads: str | None = None
    kv_capacity_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One kind of engine. `owner`: by /v1/models the owner of its models. `prefix`: of the names of its metrics.

    `read_metrics` raises `metrics.Unreadable` and gives None where nothing has happened since the last look;
    `metrics_pages` are tried in order. `read_about` takes a page's path, its content, the rank that is meant and the
    server's host; it raises Unknown. `paused_page`, where there is one, says whether the engine is paused.
    `health_every_s`: /health costs the engine work, so it is asked no more often. Timeouts are for pages that take
    longer than others by design.
    """

    name: str
    owner: str
    prefix: bytes
    read_metrics: Callable[[bytes, Which], Metrics | None]
    metrics_pages: tuple[str, ...] = ("/metrics",)
    metrics_timeout_s: float = 0.0
    about_pages: tuple[str, ...] = ()
    read_about: Callable[[str, bytes, int | None, str], About] = lambda path, page, rank, host: About()
    paused_page: str | None = None
    health_every_s: float = 0.0
    health_timeout_s: float = 0.0


def reachable(endpoint: str, host: str) -> str:
    """The address to connect to for one that a server binds: `tcp://*:5557` is on every interface of `host`[:port]."""
    scheme, _, address = endpoint.partition("://")
    bound, _, port = address.rpartition(":")
    if scheme != "tcp" or bound not in _WILDCARDS:
        return endpoint
    name = host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]
    return f"tcp://{name}:{port}"


def source_of(events: str, replay: str | None, host: str) -> EventSource:
    """From the endpoints that an engine says it has, seen from here.

    One that names a host is taken to be bound there, as vLLM's is that was told to take any port. An engine that
    connects to such an endpoint says the same; its agent must be told to bind.
    """
    return EventSource(reachable(events, host), reachable(replay, host) if replay else None)
