"""The scaling signals of a pool, by model: what is read from the view, what is counted, and what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from picker.fleet.view import View
from picker.scaling.demand import Demand
from picker.scaling.desired import Desired, Sizing
from picker.scaling.residency import Residency, of_adapter, of_model
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


class Counted:
    """Demand and size of each of `MOST_MODELS` names."""

    def __init__(self, settings: Scaling):
        self._settings = settings
        self._names: dict[str, tuple[Demand, Sizing]] = {}

    def __repr__(self) -> str:
        return f"<Counted {self._names!r}>"

    def names(self) -> list[str]:
        """Those of which anything is known."""
        return list(self._names)

    def of(self, name: str) -> tuple[Demand, Sizing]:
        """Of this name. Whoever was asked for longest ago makes room."""
        if name not in self._names and len(self._names) >= MOST_MODELS:
            oldest = min(self._names, key=lambda each: self._names[each][0].last_at)
            del self._names[oldest]
        if name not in self._names:
            self._names[name] = (Demand(self._settings.window_s), Sizing(self._settings))
        return self._names[name]


class Signals:
    """Counts what is placed and says how many workers each model needs."""

    def __init__(self, settings: Scaling, model: WorkerModel):
        self._settings = settings
        self._model = model
        self._models = Counted(settings)
        # An adapter that nobody asks for need not be loaded anywhere.
        idle_s = settings.idle_s or max(settings.down_after_s, settings.window_s)
        self._adapters = Counted(msgspec.structs.replace(settings, least=0, idle_s=idle_s))

    def __repr__(self) -> str:
        return f"<Signals {self._models!r} {self._adapters!r}>"

    def asked(
        self, model: str, adapter: str, prefill_s: float, prompt_tokens: int, output_tokens: int, now: float
    ) -> None:
        """A request has come. `prefill_s`: of what is not cached, predicted; `output_tokens`: expected."""
        work = work_s(self._model, prefill_s, prompt_tokens, output_tokens, self._settings.tpot_s)
        self._models.of(model)[0].arrived(work, prompt_tokens + output_tokens, now)
        if adapter:
            self._adapters.of(adapter)[0].arrived(work, prompt_tokens + output_tokens, now)

    def read(self, view: View, waiting: Mapping[str, Waiting], now: float, pickers: int = 1) -> dict[str, Signal]:
        """The signals of all models that are served or asked for.

        `pickers`: so many share the traffic evenly, of which this is one. The books of the view are of all anyway.
        """
        for name in (*view.model_names(), *waiting):
            self._models.of(name)
        names = self._models.names()
        return {name: self._signal(name, view, waiting.get(name, NONE_WAITS), now, pickers) for name in names}

    def residencies(
        self, signals: Mapping[str, Signal], view: View, now: float, pickers: int = 1
    ) -> dict[str, Residency]:
        """Of all models in `signals`, which `read` has just given, and of all adapters that are asked for."""
        models = {name: of_model(name, signal.desired.workers, view) for name, signal in signals.items()}
        adapters = {name: of_adapter(name, self._adapter(name, now, pickers), view) for name in self._adapters.names()}
        return adapters | models

    def _adapter(self, name: str, now: float, pickers: int) -> int:
        demand, sizing = self._adapters.of(name)
        return sizing.desired(demand, 0.0, 0, now, pickers).workers

    def _signal(self, name: str, view: View, waiting: Waiting, now: float, pickers: int) -> Signal:
        demand, sizing = self._models.of(name)
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
