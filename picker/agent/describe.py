"""From looks at an engine to what is published of its worker: facts and load. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from picker.agent.engine import EngineStatus, Models
from picker.agent.lifecycle import Finding
from picker.agent.loads import LoadReport
from picker.agent.metrics import AdapterUse, Metrics
from picker.agent.publisher import Load
from picker.redisview.records import WorkerRecord, WorkerState

_MOST_RESIDENT = 256


class Residency:
    """Which adapters are on the GPU: the last that ran, as many as have room. Engines replace the least recently used.

    No engine says so itself: vLLM 0.32 tells which adapters run or wait, SGLang 0.5 how many slots are taken.
    """

    def __init__(self) -> None:
        self._used: dict[str, None] = {}

    def note(self, use: AdapterUse, known: Collection[str]) -> tuple[str, ...]:
        """The adapters that are resident after this look, of those that the engine knows, in alphabetical order."""
        for name in sorted(use.running):
            self._used.pop(name, None)
            self._used[name] = None
        kept = [name for name in self._used if name in known][-(use.slots or _MOST_RESIDENT) :]
        self._used = dict.fromkeys(kept)
        return tuple(sorted(kept))


def facts(record: WorkerRecord, status: EngineStatus, state: WorkerState, residency: Residency) -> WorkerRecord:
    """The record as of this look. A worker that is away keeps what was known of it."""
    models = status.models or Models(record.models, record.adapters, record.context_limit_tokens)
    metrics = status.metrics or Metrics()
    return msgspec.structs.replace(
        record,
        state=state,
        engine=status.kind or record.engine,
        version=status.version or record.version,
        models=models.names,
        adapters=models.adapters,
        resident_adapters=residency.note(metrics.adapters, models.adapters),
        adapter_slots=metrics.adapters.slots or record.adapter_slots,
        kv_capacity_tokens=metrics.kv_capacity_tokens or status.kv_capacity_tokens or record.kv_capacity_tokens,
        context_limit_tokens=models.context_limit_tokens,
    )


def load(metrics: Metrics, finding: Finding, report: LoadReport | None) -> Load:
    """The load as of this look, and of the engine's own report where there is a fresh one."""
    counters = metrics.counters
    now = report or LoadReport(metrics.running, metrics.waiting, metrics.waiting_tokens, metrics.kv_used)
    return Load(
        running=now.running,
        waiting=now.waiting,
        waiting_tokens=now.waiting_tokens,
        kv_used=now.kv_used or 0.0,
        prefill_tokens_per_s=finding.prefill_tokens_per_s,
        decode_tokens_per_s=finding.decode_tokens_per_s,
        looked_up_tokens=counters.looked_up_tokens,
        reused_tokens=counters.reused_tokens,
        generated_tokens=counters.generation_tokens,
        finished=counters.successes,
        first_tokens=counters.first_tokens,
        errors=counters.errors,
    )
