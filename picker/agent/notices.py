"""What is logged of one worker: each change of state, and each advice to operators once."""

from __future__ import annotations

import structlog

from picker.agent.blocks import Counters
from picker.agent.engine import EngineStatus
from picker.agent.engines.kind import EventSource
from picker.agent.lifecycle import Finding
from picker.redisview.records import WorkerRecord, WorkerState

_log = structlog.get_logger()


class Notices:
    """Remembers what has been said."""

    def __init__(self, worker: str):
        self._worker = worker
        self._had_metrics = True
        self._warned: set[str] = set()

    def state(self, record: WorkerRecord, finding: Finding, source: EventSource | None) -> None:
        """The worker's state as it is now."""
        _log.info(
            "worker_state",
            worker=self._worker,
            state=record.state.value,
            reason=finding.reason,
            engine=record.engine,
            models=record.models,
            kv_events=source.events if source else None,
        )

    def metrics(self, has_metrics: bool, finding: Finding) -> None:
        """Tells when the pages of an engine that is up can no longer be read, and when they can."""
        if finding.state is not WorkerState.READY or has_metrics == self._had_metrics:
            return
        self._had_metrics = has_metrics
        if has_metrics:
            _log.info("engine_metrics_read", worker=self._worker)
        else:
            consequence = "requests are placed there by the pickers' own books"
            _log.warning("engine_metrics_unreadable", worker=self._worker, consequence=consequence)

    def engine(self, status: EngineStatus, rank: int | None) -> None:
        """What its metrics give away. `rank`: the one that is watched."""
        if status.metrics is None:
            return
        if rank is None and len(status.metrics.ranks) > 1:
            self.once("engine_has_ranks", advice="list a worker for each, with its rank: each has its own cache")
        if status.metrics.running and status.metrics.kv_used is None:
            self.once("engine_hides_kv_used", advice="its metrics have no name for it that is known here")

    def blocks(self, counters: Counters) -> None:
        """KV events that say nothing to us."""
        if counters.bad_block_size or counters.bad_tokens or counters.refused:
            self.once(
                "kv_events_not_indexed",
                blocks_without_size=counters.bad_block_size,
                tokens_do_not_fit_blocks=counters.bad_tokens,
                beyond_max_blocks=counters.refused,
            )

    def once(self, event: str, **fields: object) -> None:
        """A warning that is not repeated."""
        if event not in self._warned:
            self._warned.add(event)
            _log.warning(event, worker=self._worker, **fields)
