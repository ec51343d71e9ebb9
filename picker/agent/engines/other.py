"""Any other server that speaks OpenAI's protocol: its health and models are read, its load and cache are not known.

A picker goes by its own books there, and remembers what it has placed.
"""

from __future__ import annotations

from picker.agent.engines.kind import EngineKind
from picker.agent.metrics import Metrics, Which


def read_metrics(page: bytes, which: Which) -> Metrics | None:
    """Never anything new."""
    return None


KIND = EngineKind(name="other", owner="", prefix=b"", read_metrics=read_metrics, metrics_pages=())
