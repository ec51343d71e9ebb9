"""The scaling signals of `picker serve`: counted as requests come, read once a second, shown as metrics and to KEDA."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import structlog

from picker.config import Config
from picker.fleet.view import View
from picker.platform.state import ModelState
from picker.platform.state import models as states_of
from picker.scaling.external_scaler import ExternalScalerPort
from picker.scaling.residency import Residency
from picker.scaling.signals import Signal, Signals, Waiting
from picker.telemetry.metrics import ModelReadings

log = structlog.get_logger()
T = TypeVar("T")

_READ_EVERY_S = 1.0


class Sizing:
    """One picker's view of how many workers its pool needs. `pickers`: how many there are, which share the traffic."""

    def __init__(
        self,
        config: Config,
        view: View,
        waiting: Callable[[float], Mapping[str, Waiting]],
        pickers: Callable[[], int],
    ):
        self._keda = config.scaling.keda
        self._signals = Signals(config.scaling, config.worker_model)
        self._view = view
        self._waiting = waiting
        self._pickers = pickers
        self._now: dict[str, Signal] = {}
        self._residencies: dict[str, Residency] = {}
        self.readings: ModelReadings = {}
        self.asked = self._signals.asked

    async def open(self, exits: contextlib.AsyncExitStack) -> None:
        """Listens for KEDA where that is wanted. Requests do not need it: a port that is taken is no error."""
        if not self._keda:
            return
        port = ExternalScalerPort(self._keda, self)
        exits.push_async_callback(port.stop)
        try:
            await port.start()
        except OSError:
            log.error("no_keda_port", reason=f"scaling.keda: cannot listen on {self._keda}: the port is taken")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.read(time.monotonic())
            await asyncio.sleep(_READ_EVERY_S)

    def read(self, now: float) -> None:
        """Looks once."""
        pickers = self._pickers()
        self._now = self._signals.read(self._view, self._waiting(now), now, pickers)
        self._residencies = self._signals.residencies(self._now, self._view, now, pickers)
        self.readings = {**_readings(self._now), **_residency_readings(self._residencies)}

    def models(self) -> dict[str, ModelState]:
        """What a platform is told of each model and adapter."""
        return states_of(self._now, self._residencies)

    def desired(self) -> Mapping[str, int]:
        """Workers to ask for, by model."""
        return {model: signal.desired.workers for model, signal in self._now.items()}


def _readings(signals: Mapping[str, Signal]) -> ModelReadings:
    return _by_name(signals, {
        "scaling_desired_workers": ("Workers to ask for.", lambda s: s.desired.workers),
        "scaling_workers_now": ("Workers for the demand of now, at the target.", lambda s: s.desired.now),
        "scaling_workers_soon": ("Workers for the demand forecast.", lambda s: s.desired.soon),
        "scaling_workers_backlog": ("Workers for what waits already.", lambda s: s.desired.backlog),
        "scaling_workers": ("Workers that serve it and are heard of.", lambda s: s.workers),
        "scaling_requests_per_second": ("Requests that come, of all pickers.", lambda s: s.requests_per_s),
        "scaling_tokens_per_second": ("Tokens of prompts and expected answers.", lambda s: s.tokens_per_s),
        "scaling_service_seconds": ("Worker-seconds of a request.", lambda s: s.service_s),
        "scaling_saturation": ("Share of the workers' time that prefill fills, 0 to 1.", lambda s: s.saturation),
        "scaling_waiting_requests": ("Requests that wait for a worker with room.", lambda s: s.waiting.requests),
        "scaling_waiting_oldest_seconds": ("How long the oldest of them has waited.", lambda s: s.waiting.oldest_s),
        "scaling_requests_at_risk": ("Requests that wait longer than drain_s.", lambda s: s.at_risk),
    })  # fmt: skip


def _residency_readings(residencies: Mapping[str, Residency]) -> ModelReadings:
    return _by_name(residencies, {
        "scaling_resident_workers": ("Workers on which a model or an adapter is loaded.", lambda r: r.resident),
        "scaling_resident_needed": ("Workers on which it should be, by what it is asked for.", lambda r: r.needed),
        "scaling_preload_workers": ("Workers on which it should be loaded besides.", lambda r: r.preload),
    })  # fmt: skip


def _by_name(values: Mapping[str, T], columns: Mapping[str, tuple[str, Callable[[T], float]]]) -> ModelReadings:
    return {
        metric: (text, {name: read(value) for name, value in values.items()})
        for metric, (text, read) in columns.items()
    }
