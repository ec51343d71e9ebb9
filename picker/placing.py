"""From a request that has been read to a placement in the books: profile, decision, booking. Nothing awaits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import msgspec

from picker.admission.entry import Entry
from picker.config import Config
from picker.events.record import digest
from picker.fleet.inflight import Booking
from picker.fleet.view import View
from picker.prompts.incremental import BYTES_PER_TOKEN
from picker.prompts.prefix import PrefixChain
from picker.requests.headers import required_labels
from picker.requests.model import InferenceRequest
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision, Reason, Refused, Routed
from picker.scheduling.disaggregation import decide_stages
from picker.scheduling.policies import find
from picker.scheduling.profile import choose
from picker.scheduling.request import SchedulingRequest
from picker.ties import Ties

MOST_GUESSED_TOKENS = 8192
"""Of a prompt that nobody could read, guessed from its bytes: many are images or audio, of far fewer tokens."""

SILENT_S = 10.0
"""A request that ends unanswered after so long has failed. Peers: 60 s; engines that stream answer in far less."""

_MOST_ANSWERS = 128
_FOR_WANT_OF_WORKERS = (Reason.NO_WORKERS, Reason.NOT_READY)


class Placement(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A request that is on its way to a worker.

    `prefill` is the decision where its prompt is computed first, `prefilling` its booking; None where that is the same
    worker. `entry` is what it was while it waited, None where it did not.
    """

    request: SchedulingRequest
    decision: Routed
    booking: Booking
    prefill: Routed | None = None
    prefilling: Booking | None = None
    entry: Entry | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What to suppose, where it is asked what would be decided. None is what would be without the question.

    `sequence` and `ties` are those of an earlier decision, to break ties as it did; `avoid` are endpoints.
    """

    policy: str | None = None
    sequence: int | None = None
    ties: int | None = None
    avoid: frozenset[str] = frozenset()


class Placer:
    """Places requests on the workers of a view, by the rules of a configuration."""

    def __init__(self, config: Config, view: View, salt: int | None = None):
        self._view = view
        self.configure(config)
        self._ties = Ties()
        self.salt = Random().getrandbits(52) if salt is None else salt
        """Pickers that count alike must not choose alike among equals; the same number chooses the same again."""
        self._sequence = 0
        self.hears_answers = False
        """Whether the proxy tells of response headers."""

    def configure(self, config: Config) -> None:
        """Goes by these rules from now on."""
        self._config = config
        self._policy = find(config.policy)
        self._policies = {each.policy: find(each.policy) for each in config.profiles if each.policy}
        self._model = config.worker_model
        self._fallbacks = config.fallbacks
        self._profiles = config.profiles
        self._requirement_headers = config.requirement_headers
        self._placement = config.placement
        self._roles = config.disaggregation

    def what_if(self, question: Question) -> Placer:
        """Another one over the same view, which decides as the question supposes and is not to place anything."""
        config = self._config
        if question.policy:
            profiles = tuple(msgspec.structs.replace(profile, policy=None) for profile in config.profiles)
            config = msgspec.structs.replace(config, policy=question.policy, profiles=profiles)
        sequence = self._sequence if question.sequence is None else question.sequence
        salt = self.salt if question.ties is None else question.ties - sequence
        other = Placer(config, self._view, salt)
        other._sequence = sequence
        return other

    def about(
        self,
        request: InferenceRequest,
        prefix: PrefixChain,
        base: str,
        adapter: str,
        headers: Mapping[str, str],
        subset: frozenset[str] | None,
        avoid: frozenset[str],
    ) -> SchedulingRequest:
        """What the decision is made about. `base` and `adapter` as `View.base_and_adapter` has them."""
        terms, model = request.terms, request.model or ""
        prompt_tokens = prefix.prompt_tokens or _guessed_tokens(request)
        self._sequence += 1
        return SchedulingRequest(
            sequence=self._sequence - 1,
            model=request.model,
            prompt_tokens=prompt_tokens,
            expected_output_tokens=_expected_output(request, self._view.lengths.mean(base)),
            wanted_output_tokens=request.max_tokens or 0,
            chain=prefix.blocks,
            block_tokens=prefix.block_tokens,
            exact=prefix.exact,
            adapter=adapter,
            # Only whether it is the same one matters, and it may be a secret.
            session=digest(terms.session) if terms.session else "",
            subset=subset,
            avoid=avoid,
            require=self._required(headers, model, base, adapter),
            profile=choose(self._profiles, model, terms.tenant, terms.objective, prompt_tokens),
        )

    def _required(self, headers: Mapping[str, str], model: str, base: str, adapter: str) -> Mapping[str, Sequence[str]]:
        required = required_labels(headers, self._requirement_headers) if self._requirement_headers else {}
        if not self._placement:
            return required
        workers = self._placement.get(model, None if adapter else self._placement.get(base))
        return required if workers is None else {**required, "worker": workers}

    def decide(self, request: SchedulingRequest, now: float) -> tuple[Decision, Routed | None]:
        """Where it should go, and where its prompt should be computed first; None where that is the same worker."""
        policy = self._policies[request.profile.policy] if request.profile.policy else self._policy
        self._ties.start(self.salt + request.sequence)
        arguments = (self._view, policy, self._model, now, self._ties, self._fallbacks)
        return decide_stages(request, self._roles, *arguments) if self._roles else (decide(request, *arguments), None)

    def place(self, request: SchedulingRequest, now: float) -> Refused | Placement:
        """Decides and books. The next decision sees it in the books."""
        decision, prefill = self.decide(request, now)
        return decision if isinstance(decision, Refused) else self.book(request, decision, prefill, now)

    def book(
        self,
        request: SchedulingRequest,
        decision: Routed,
        prefill: Routed | None,
        now: float,
        entry: Entry | None = None,
    ) -> Placement:
        """Books what was decided. `entry` is that of a request that has waited."""
        self._view.reuse.placed(decision.slots[0], request.prompt_tokens, decision.hit_tokens, now)
        booking = self._book(request, decision, now)
        prefilling = self._book(request, prefill, now) if prefill else None
        return Placement(request, decision, booking, prefill, prefilling, entry)

    def prefill_s(self, request: SchedulingRequest, outcome: object) -> float | None:
        """What the prompt costs a worker; None where no worker would make a difference."""
        if isinstance(outcome, Placement):
            return outcome.decision.work_s + (outcome.prefill.work_s if outcome.prefill else 0.0)
        if isinstance(outcome, Refused) and outcome.reason not in _FOR_WANT_OF_WORKERS:
            return None
        return self._model.prefill_on_one_s(request.prompt_tokens)

    def answered(self, placement: Placement, status: int, served: str, now: float) -> None:
        """The head of a response has come, from the endpoint `served`, "" where the proxy does not say.

        Another endpoint than the one picked is a fallback's: the picked one has failed.
        """
        self.hears_answers = placement.booking.is_heard = True
        placement.booking.is_answered = 200 <= status < 300
        if placement.prefilling:
            placement.prefilling.is_answered = True
            self._view.inflight.release(placement.prefilling, now)
        is_theirs = served in ("", placement.decision.endpoints[0])
        if is_theirs:
            self._view.breakers.answered(placement.booking.slot, status, now)
        else:
            self._view.breakers.failed(placement.booking.slot, now)
        if status >= 400 or not is_theirs:
            held = placement.decision.hit_tokens // placement.request.block_tokens
            self._view.withdraw(placement.booking.slot, placement.request.chain, held)

    def release(self, placement: Placement, now: float) -> None:
        """The exchange is over."""
        booking = placement.booking
        # A client that waits so long for nothing at all waits for a worker that hangs, unless answers are not shown us.
        is_unanswered = self.hears_answers and booking.is_open and not booking.is_heard
        if is_unanswered and now - booking.placed_at >= SILENT_S:
            self._view.breakers.failed(booking.slot, now)
        self._view.inflight.release(booking, now)
        if placement.prefilling:
            self._view.inflight.release(placement.prefilling, now)

    def _book(self, request: SchedulingRequest, decision: Routed, now: float) -> Booking:
        slot = decision.slots[0]
        if request.adapter:
            self._view.use_adapter(slot, request.adapter)
        self._view.breakers.tried(slot, now)
        return self._view.place(slot, request.chain, request.exact, decision.work_s, request.prompt_tokens, now)


def _expected_output(request: InferenceRequest, mean: int) -> int:
    """Tokens, of all answers together. `mean` is the model's; few requests use up a huge `max_tokens`."""
    each = mean if request.max_tokens is None else min(request.max_tokens, mean)
    return each * min(request.answers, _MOST_ANSWERS)


def _guessed_tokens(request: InferenceRequest) -> int:
    size = request.prompt.size if request.prompt else request.unread_bytes
    return min(size // BYTES_PER_TOKEN, MOST_GUESSED_TOKENS)
