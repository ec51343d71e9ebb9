"""The scaling signals of a pool, by model: what is read from the view, what is counted, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from picker.fleet.view import View
from picker.scaling.demand import Demand
from picker.scaling.desired import Desired, Sizing
from picker.scaling.settings import Scaling
from picker.scaling.work import work_s
from picker.scheduling.model import WorkerModel

MOST_MODELS = 100
"""Names of models come from clients where no worker knows them."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits for a worker to have room, of one model: requests, tokens of their prompts, the oldest's age."""

    requests: int = 0
    tokens: int = 0
    oldest_s: float = 0.0


NONE_WAITS = Waiting()


@dataclass(frozen=True, slots=True)
class Signal:
    """Of one model. Rates are for each second; `workers` are those that serve it, `saturation` their mean."""

    requests_per_s: float
    tokens_per_s: float
    service_s: float
    workers: int
    running: int
    waiting: Waiting
    backlog_s: float
    saturation: float
    at_risk: int
    desired: Desired


class Signals:
    """Counts what is placed and says how many workers each model needs."""

    def __init__(self, settings: Scaling, model: WorkerModel):
        self._settings = settings
        self._model = model
        self._models: dict[str, tuple[Demand, Sizing]] = {}

    def __repr__(self) -> str:
        return f"<Signals {self._models!r}>"

    def asked(self, model: str, prefill_s: float, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """A request has come. `prefill_s`: of what is not cached, predicted; `output_tokens`: expected."""
        work = work_s(self._model, prefill_s, prompt_tokens, output_tokens, self._settings.tpot_s)
        self._of(model)[0].arrived(work, prompt_tokens + output_tokens, now)

    def read(self, view: View, waiting: Mapping[str, Waiting], now: float, pickers: int = 1) -> dict[str, Signal]:
        """The signals of all models that are served or asked for.

        `pickers`: so many share the traffic evenly, of which this is one. The books of the view are of all anyway.
        """
        for name in (*view.model_names(), *waiting):
            self._of(name)
        return {name: self._signal(name, view, waiting.get(name, NONE_WAITS), now, pickers) for name in self._models}

    def _of(self, model: str) -> tuple[Demand, Sizing]:
        if model not in self._models and len(self._models) >= MOST_MODELS:
            # Whoever was asked for longest ago makes room.
            oldest = min(self._models, key=lambda name: self._models[name][0].last_at)
            del self._models[oldest]
        if model not in self._models:
            self._models[model] = (Demand(self._settings.window_s), Sizing(self._settings))
        return self._models[model]

    def _signal(self, name: str, view: View, waiting: Waiting, now: float, pickers: int) -> Signal:
        demand, sizing = self._models[name]
        serving = view.serving(name) & view.fresh()
        books = view.inflight.outstanding(now)
        owed = np.where(serving, books.prefill_s, 0.0)
        backlog_s = float(owed.sum()) + waiting.tokens * pickers * self._model.prefill_s_per_token
        late = serving & (books.prefill_s > self._settings.drain_s)
        workers = int(serving.sum())
        busy = np.clip(books.utilisation[serving], 0.0, 1.0)
        return Signal(
            requests_per_s=pickers * demand.requests_per_s,
            tokens_per_s=pickers * demand.tokens_per_s,
            service_s=demand.service_s,
            workers=workers,
            running=int(books.requests[serving].sum()),
            waiting=waiting,
            backlog_s=backlog_s,
            saturation=float(busy.mean()) if workers else 0.0,
            at_risk=int(books.requests[late].sum()) + waiting.requests,
            desired=sizing.desired(demand, backlog_s, waiting.requests, now, pickers),
        )
