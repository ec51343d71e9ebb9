"""Whether a worker has room for one more request, and how soon a request would have its first token there."""

from __future__ import annotations

from picker.admission.settings import Room
from picker.fleet.view import View
from picker.scheduling.model import WorkerModel
from picker.scheduling.policies.expected_delay import LEAST_WAIT, MOST_UTILISATION


class WorkerRoom:
    """Room in tokens: of prompts that were sent to a worker and have not brought a first token.

    The books keep them as seconds of predicted prefill, of all pickers; so the bound is that of a prompt of so many
    tokens, and long contexts count for what they cost. Where nothing shows first tokens, a worker that says that nobody
    waits there has room whatever was predicted.
    """

    def __init__(self, view: View, model: WorkerModel, settings: Room):
        self._view = view
        self._model = model
        self._most_s = model.prefill_on_one_s(settings.tokens)
        self._most_kv = settings.kv_used
        self._tpot_s = settings.tpot_s

    def __repr__(self) -> str:
        return f"<WorkerRoom up to {self._most_s:.2f} s of prefill>"

    def is_at(self, slot: int, now: float, share: float = 1.0) -> bool:
        """Whether this worker has room, for one who may use up only this share of it.

        One that is gone counts as free, so that somebody looks for another.
        """
        view = self._view
        if not view.known[slot]:
            return True
        # While Redis is away what workers said last is no reason to wait: it would be one for ever.
        if view.is_live and view.kv_expected(slot) >= self._most_kv * share:
            return False
        books = view.inflight
        owed_s = books.prefill_s.item(slot) + books.others.prefill_s.item(slot)
        if owed_s > self._most_s * share and (self._shows_first_tokens(slot) or view.waiting.item(slot)):
            return False
        if self._tpot_s is None or not books.requests.item(slot):
            return True
        return self._step_s(slot, now) <= self._tpot_s * share

    def _step_s(self, slot: int, now: float) -> float:
        """Between two tokens of a request there, as long as prefill goes on at this rate."""
        books = self._view.inflight.outstanding(now)
        step_s = self._model.decode_step_s(books.requests.item(slot), books.context_tokens.item(slot))
        busy = min(MOST_UTILISATION, books.utilisation.item(slot))
        return float(self._view.inflight.speed().item(slot) * step_s / (1 - busy))

    def ttft_s(self, slot: int, work_s: float, now: float) -> tuple[float, float]:
        """To the first token of a request of so much work, were it sent there now: others' prefill, and its own.

        In seconds, at the worker's own speed.
        """
        books = self._view.inflight.outstanding(now)
        speed = self._view.inflight.speed().item(slot)
        owed_s = speed * books.prefill_s.item(slot)
        age_s = now - books.progress_at.item(slot) if owed_s else 0.0
        return max(owed_s - age_s, LEAST_WAIT * owed_s), speed * work_s

    def _shows_first_tokens(self, slot: int) -> bool:
        view = self._view
        return view.is_live and view.facts(slot).publishes_kv and view.index.trusts(slot)
