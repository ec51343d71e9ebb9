"""The agent's own /health and /metrics, on a port of their own, from a thread of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from picker.agent.worker import WorkerStatistics
from picker.redisview.records import WorkerState

Read = Callable[[], Mapping[str, WorkerStatistics]]
_ALIVE_S = 10.0

_GAUGES: dict[str, tuple[str, Callable[[WorkerStatistics], float]]] = {
    "ready": ("Whether the worker may be picked.", lambda each: each.state is WorkerState.READY),
    "metrics_readable": ("Whether the engine's load is known.", lambda each: each.has_metrics),
    "kv_used_known": ("Whether the engine says how full its cache is.", lambda each: each.has_kv_used),
    "engine_blocks": ("Blocks of the engine that are followed.", lambda each: each.blocks.nodes),
    "index_blocks": ("Index blocks that are published.", lambda each: each.blocks.published),
    "pending_blocks": ("Changes that are not in Redis yet.", lambda each: each.publisher.pending_blocks),
    "redis_connected": ("Whether Redis took the last write.", lambda each: each.publisher.is_connected),
    "fenced": ("Whether another agent speaks for the worker.", lambda each: each.publisher.is_fenced),
}
_COUNTERS: dict[str, tuple[str, Callable[[WorkerStatistics], float]]] = {
    "redis_failures": ("Writes to Redis that failed.", lambda each: each.publisher.failures),
    "snapshots": ("Snapshots written.", lambda each: each.publisher.snapshots),
    "orphaned_blocks": ("Stored under a parent never seen.", lambda each: each.blocks.counters.orphaned),
    "opaque_blocks": ("Stored for images and the like.", lambda each: each.blocks.counters.opaque),
    "refused_blocks": ("Beyond the bound of the table.", lambda each: each.blocks.counters.refused),
    "unknown_removed_blocks": ("Removed and never stored.", lambda each: each.blocks.counters.unknown_removed),
    "event_batches": ("Batches of KV events.", lambda each: each.subscriber.batches if each.subscriber else 0),
    "event_gaps": ("Gaps in their numbers.", lambda each: each.subscriber.gaps if each.subscriber else 0),
    "events_lost": ("Gaps that could not be filled.", lambda each: each.subscriber.lost if each.subscriber else 0),
    "engine_restarts": ("Restarts seen in events.", lambda each: each.subscriber.restarts if each.subscriber else 0),
    "malformed_batches": ("Batches nobody can read.", lambda each: each.subscriber.malformed if each.subscriber else 0),
}


class _Workers(Collector):
    def __init__(self, read: Read) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        workers = self._read()
        for kind, table in ((GaugeMetricFamily, _GAUGES), (CounterMetricFamily, _COUNTERS)):
            for name, (text, value) in table.items():
                family = kind(f"picker_agent_{name}", text, labels=["worker"])
                for worker, statistics in workers.items():
                    family.add_metric([worker], value(statistics))
                yield family


class Pulse:
    """Whether the agent's loop still turns."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def beat(self) -> None:
        """It does."""
        self._at = time.monotonic()

    @property
    def is_alive(self) -> bool:
        """Whether it has, lately."""
        return time.monotonic() - self._at < _ALIVE_S


class _Quiet(WSGIRequestHandler):
    timeout = 10.0

    def log_message(self, format: str, *arguments: Any) -> None:
        """One line for each scrape helps nobody."""


def serve(host: str, port: int, read: Read, pulse: Pulse) -> Callable[[], None]:
    """Answers from a thread, one request at a time; returns what stops it. Raises OSError if the port is taken."""
    registry = CollectorRegistry()
    registry.register(_Workers(read))
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start)
            return answer
        status = {"/health": "200 OK" if pulse.is_alive else "503 Service Unavailable"}.get(
            environ["PATH_INFO"], "404 Not Found"
        )
        start(status, [("content-type", "text/plain")])
        return [b""]

    server = make_server(host, port, app, handler_class=_Quiet)
    thread = threading.Thread(target=server.serve_forever, name="agent-http", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
