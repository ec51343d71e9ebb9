"""The truth check: predicted prefix hits against those that engines count, as gauges, log lines and a health detail.

Nothing is placed otherwise for it: a prediction that is wrong makes picks worse, not wrong, and what mends it (another
template, another tokenizer, an agent that hears its events) is an operator's to do.
"""

from __future__ import annotations

import asyncio
import time

import structlog

from picker.config import Prediction
from picker.debug.health import Health
from picker.fleet.reuse import Change, PredictionWatch
from picker.fleet.view import View
from picker.telemetry.metrics import ModelReadings

log = structlog.get_logger()

HEALTH_NAME = "prefix-prediction"
"""Of the gRPC health service: NOT_SERVING while the predictions for a model are wrong. Readiness does not heed it."""

_LOOK_EVERY_S = 2.0


class TruthCheck:
    """Looks at the view from time to time. `readings` are for Prometheus, by model as workers name it."""

    def __init__(self, view: View, health: Health, settings: Prediction):
        self.readings: ModelReadings = {}
        self._view = view
        self._health = health
        self._watch = PredictionWatch(settings.max_error, settings.sustained_s, settings.least_tokens)

    @property
    def wrong(self) -> frozenset[str]:
        """The models whose predictions are wrong at present."""
        return self._watch.wrong

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look(time.monotonic())
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self, now: float) -> None:
        """Judges once."""
        for change in self._watch.look(self._view.reused(now), now):
            _log(change)
        await self._health.set_detail(HEALTH_NAME, not self._watch.wrong)
        self.readings = self._read(now)

    def _read(self, now: float) -> ModelReadings:
        models = self._view.model_names()
        self._view.lengths.keep(models)
        shares, wrong = self._view.reused(now), self._watch.wrong
        return {
            "predicted_hit_share": (
                "Share of prompt tokens predicted to be cached, of late.",
                {model: each.predicted for model, each in shares.items()},
            ),
            "engine_hit_share": (
                "Share of prompt tokens that engines found in their prefix caches, of late.",
                {model: each.reused for model, each in shares.items()},
            ),
            "prediction_wrong": (
                "1 while the two shares have been too far apart for too long.",
                {model: float(model in wrong) for model in models},
            ),
            "expected_output_tokens": (
                "Mean output tokens of a request, learnt from engines' counters.",
                {model: self._view.lengths.mean(model) for model in models},
            ),
        }


def _log(change: Change) -> None:
    shares = change.shares
    fields = {"model": change.model, "predicted": round(shares.predicted, 3), "engine": round(shares.reused, 3)}
    if not change.is_wrong:
        log.info("prefix_prediction_right", **fields)
    elif shares.error > 0:
        advice = "see that agents hear all KV events, and that the engine's prefix cache is on"
        log.warning("prefix_prediction_wrong", **fields, advice=advice)
    else:
        advice = "compare tokenizer and chat template with the engine's; picker_prefix_rung_total tells what is missing"
        log.warning("prefix_prediction_wrong", **fields, advice=advice)
