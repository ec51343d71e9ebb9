"""What one look at an engine after the other says about its worker. Pure: time comes in as `now`, in seconds."""

from __future__ import annotations

from dataclasses import dataclass

from picker.agent.engine import EngineStatus, Reach
from picker.agent.metrics import Metrics, has_restarted, rates
from picker.redisview.records import WorkerState


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """`stall_after_s`: so long may an engine that runs requests show no progress.

    `tolerated_timeouts`: so many looks in a row may time out. vLLM's API server answers late while it tokenizes long
    prompts; a server that is gone refuses the connection, and that counts at once.
    """

    stall_after_s: float = 10.0
    tolerated_timeouts: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """The state to publish and, unless it is READY, why.

    `begins_anew`: the cache may have begun anew, so this is a new epoch. `is_emptied`: the engine has just emptied its
    cache without saying so. Rates are tokens per second since the look before.
    """

    state: WorkerState
    reason: str = ""
    begins_anew: bool = False
    is_emptied: bool = False
    prefill_tokens_per_s: float = 0.0
    decode_tokens_per_s: float = 0.0


class StallWatch:
    """Notices an engine that has requests and does nothing with them, as with a hung GPU: /health stays 200."""

    def __init__(self, stall_after_s: float) -> None:
        self._stall_after_s = stall_after_s
        self._seen: tuple[object, ...] = ()
        self._moved_at = 0.0

    def is_stalled(self, metrics: Metrics, now: float) -> bool:
        """Takes one look at a time."""
        # Token counters stand still while a long prompt is computed in chunks; steps and KV blocks do not.
        seen = (metrics.counters, metrics.kv_used, metrics.running, metrics.waiting)
        if seen != self._seen or not (metrics.running or metrics.waiting):
            self._seen, self._moved_at = seen, now
        return now - self._moved_at >= self._stall_after_s


class Lifecycle:
    """LOADING until the engine is up and says what it serves; then READY or UNHEALTHY.

    A worker begins anew when it is first seen up, when it comes back after it was gone, when its process is another one
    than before, and when it serves another model.
    """

    def __init__(self, settings: LifecycleSettings = LifecycleSettings()) -> None:
        self._settings = settings
        self._stall = StallWatch(settings.stall_after_s)
        self._model = ""
        self._is_gone = True
        self._timeouts = 0
        self._finding = Finding(WorkerState.LOADING)
        self._last: Metrics | None = None
        self._was_asleep = False
        self._last_at = 0.0

    def observe(self, status: EngineStatus, now: float) -> Finding:
        """Takes one look at a time, in order."""
        self._timeouts = self._timeouts + 1 if status.reach is Reach.SILENT else 0
        self._finding = self._find(status, now)
        return self._finding

    def _find(self, status: EngineStatus, now: float) -> Finding:
        if 0 < self._timeouts <= self._settings.tolerated_timeouts:
            return Finding(self._finding.state, self._finding.reason)
        if status.reach is Reach.SILENT:
            return self._not_ready(status.reach.value)
        if status.reach is not Reach.UP:
            self._is_gone = True
            return self._not_ready(status.reach.value)
        if status.models is None or not status.models.names:
            return self._not_ready("/v1/models names no model; if it wants a key, set api_key_file")
        return self._up(status.models.names[0], status, now)

    def _not_ready(self, reason: str) -> Finding:
        return Finding(WorkerState.UNHEALTHY if self._model else WorkerState.LOADING, reason)

    def _up(self, model: str, status: EngineStatus, now: float) -> Finding:
        metrics, before, elapsed_s = status.metrics, self._last, now - self._last_at
        is_other = metrics is not None and before is not None and has_restarted(before, metrics)
        anew = self._is_gone or is_other or model != self._model
        self._model, self._is_gone = model, False
        # vLLM 0.32 clears its cache when it goes to sleep or is paused, and announces that with its first step after
        # waking up.
        asleep = _asleep(status)
        is_emptied, self._was_asleep = bool(asleep) and not self._was_asleep and not anew, bool(asleep)
        if metrics is None:
            return Finding(*_state(asleep), anew, is_emptied)
        self._last, self._last_at = metrics, now
        if anew or before is None:
            self._stall = StallWatch(self._settings.stall_after_s)
            before = metrics
        is_stalled = self._stall.is_stalled(metrics, now)
        stalled = f"requests are there without progress for {self._settings.stall_after_s:g} s" if is_stalled else ""
        prefill, decode = rates(before.counters, metrics.counters, elapsed_s)
        return Finding(*_state(asleep or stalled), anew, is_emptied, prefill, decode)


def _asleep(status: EngineStatus) -> str:
    if status.metrics is not None and status.metrics.sleeps:
        return "the engine sleeps"
    return "the engine is paused" if status.is_paused else ""


def _state(trouble: str) -> tuple[WorkerState, str]:
    return (WorkerState.UNHEALTHY if trouble else WorkerState.READY), trouble
