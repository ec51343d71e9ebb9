"""The kinds of engine, each a module with its names for things; adding one is one file and one word here.

Everything that is done with what they say is elsewhere, and the same for all.
"""

from __future__ import annotations

from picker.agent.engines import other, sglang, trtllm, vllm
from picker.agent.engines.kind import EngineKind

AUTO = "auto"
KINDS: dict[str, EngineKind] = {each.KIND.name: each.KIND for each in (vllm, sglang, trtllm, other)}


OTHER = other.KIND


def kind_of(owner: str) -> EngineKind | None:
    """The kind of engine whose /v1/models says that models are owned by `owner`."""
    return next((kind for kind in KINDS.values() if kind.owner == owner != ""), None)


def kind_by_metrics(page: bytes) -> EngineKind | None:
    """The kind of engine that writes such a metrics page."""
    return next((kind for kind in KINDS.values() if kind.prefix and kind.prefix in page), None)
