"""A recorded day, played again: requests come as they came, and what a policy does with them has consequences.

`picker.replaying` makes each decision again on what it saw. Here the simulated workers see what was decided: caches
fill, queues grow, and the next decision sees that. The workers are those of the recording while they were ready, as
fast as its `worker_model` says; what a prompt shares with others follows from its recorded chain. A request that was
turned away while it waited is there too, but as one that shares nothing: its chain was not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import msgspec

from picker.admission.control import Admitted, Failed, Verdict
from picker.admission.refusals import Cause, Turned
from picker.config import Config
from picker.events.inputs import Fleet, Inputs, Process, Worker
from picker.events.record import Record
from picker.replaying import BadRecording, Totals, as_recorded, predicted_ttft_s, read_lines, settings_of
from picker.replaying import Verdict as Predicted
from picker.scheduling.decide import decide
from picker.scheduling.decision import Decision, Refused
from picker.scheduling.policies import find
from picker.scheduling.profile import choose
from picker.scheduling.request import SchedulingRequest
from picker.simulation.discrete.cluster import Cluster, _Run, _Worker
from picker.simulation.discrete.engine import DiscreteEngine
from picker.simulation.discrete.gateway import Away, Change, Facts, Gateway, Placed
from picker.simulation.discrete.outcome import Outcome
from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.profiles import Profile

_BLOCK_TOKENS = 64
_KV_TOKENS = 400_000
"""Of a worker that does not say."""
_TURNED_AWAY = frozenset(Cause)


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker has come with an empty cache, or has gone. `worker` is its number."""

    at: float
    worker: int
    is_there: bool


@dataclass(frozen=True, slots=True)
class Day:
    """What happened, whatever was decided; times begin at 0. `config` has the settings that made the decisions."""

    config: Config
    asks: Sequence[Ask] = field(repr=False)
    workers: Sequence[Worker]
    presences: Sequence[Presence]
    recorded: Totals
    """What was predicted and decided then. `ttft_s` is what was measured, where a response was seen."""


@dataclass(frozen=True, slots=True)
class Played:
    """A day as it would have been. `predicted` is what the picker knew at each decision, `outcome` what came of it."""

    predicted: Totals
    outcome: Outcome


def read(files: Iterable[Path]) -> Day:
    """A recording, the oldest file first. Raises BadRecording."""
    reading = _Reading()
    for file in files:
        for number, line in read_lines(file):
            reading.take(line, f"{file.name}:{number}")
    return reading.day()


def play(day: Day, config: Config, seed: int = 1) -> Played:
    """The day by these settings. The same arguments give the same outcome."""
    if config.disaggregation:
        raise BadRecording(
            "nothing is disaggregated in the simulation; replay without --simulate decides such settings"
        )
    run = _Recorded(day, config, seed)
    outcome = run.go()
    return Played(run.picker.totals, outcome)


class _Reading:
    """From lines to a day."""

    def __init__(self) -> None:
        self._config: Config | None = None
        self._inputs: dict[str, Inputs] = {}
        self._records: dict[str, Record] = {}
        self._fleet: Mapping[int, Worker] | None = None
        self._there: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._workers: list[Worker] = []
        self._presences: list[Presence] = []

    def take(self, line: Process | Fleet | Inputs | Record, where: str) -> None:
        """The next line."""
        match line:
            case Process(policy=policy):
                # Where settings have changed in the middle, the first ones count.
                self._config = self._config or settings_of(policy, where)
            case Fleet(workers=workers):
                self._fleet = workers
            case Inputs():
                self._inputs[line.id] = msgspec.structs.replace(line, changes={}, sums={})
                if self._fleet is not None:
                    # Those of the beginning were there before: the first requests may have waited.
                    self._look(self._fleet, line.now if self._workers else 0.0)
                    self._fleet = None
            case Record():
                self._records[line.id] = line

    def day(self) -> Day:
        """All of it. Raises BadRecording."""
        if self._config is None or not self._inputs:
            raise BadRecording("holds no decision to play again; events.replayable records them")
        asks = sorted((*self._made(), *self._turned_away()), key=lambda ask: ask.at)
        # Those that waited came before the first decision.
        begin = asks[0].at
        return Day(
            config=self._config,
            asks=[replace(ask, at=ask.at - begin, user=number) for number, ask in enumerate(asks)],
            workers=self._workers,
            presences=[replace(each, at=max(0.0, each.at - begin)) for each in self._presences],
            recorded=self._recorded(),
        )

    def _look(self, fleet: Mapping[int, Worker], now: float) -> None:
        ready = {each.worker: each for each in fleet.values() if each.state == "ready"}
        for name in [name for name, epoch in self._there.items() if name not in ready or ready[name].epoch != epoch]:
            del self._there[name]
            self._presences.append(Presence(now, self._numbers[name], False))
        for name, worker in ready.items():
            if name not in self._numbers:
                self._numbers[name] = len(self._workers)
                self._workers.append(worker)
            if name not in self._there:
                self._there[name] = worker.epoch
                self._presences.append(Presence(now, self._numbers[name], True))

    def _made(self) -> Iterator[Ask]:
        for line in self._inputs.values():
            record = self._records.get(line.id)
            about = msgspec.convert(line.about, SchedulingRequest)
            at = line.now - (record.stages.queue_s if record else 0.0)
            yield _ask(at, about, line.tenant, line.objective, record.outcome.output_tokens if record else None)

    def _turned_away(self) -> Iterator[Ask]:
        ahead = self._monotonic_ahead()
        for record in self._records.values():
            if record.reason in _TURNED_AWAY:
                about = SchedulingRequest(
                    0, record.model or None, record.prompt_tokens, record.expected_output_tokens, adapter=record.adapter
                )
                at = record.at + ahead - record.stages.queue_s
                yield _ask(at, about, record.tenant, record.objective, None)

    def _monotonic_ahead(self) -> float:
        """Of Unix time, on the machine that recorded."""
        both = (self._inputs[name].now - record.at for name, record in self._records.items() if name in self._inputs)
        return next(both, 0.0)

    def _recorded(self) -> Totals:
        totals = Totals()
        for record in self._records.values():
            first_s = record.outcome.first_byte_s
            ttft_s = float("inf") if first_s is None else record.stages.queue_s + first_s
            if record.verdict != "pass":
                totals.add(Predicted(record.endpoints, record.reason, record.hit_tokens, ttft_s), record.prompt_tokens)
        return totals


def _ask(at: float, about: SchedulingRequest, tenant: str, objective: str, output_tokens: int | None) -> Ask:
    """`output_tokens`: as the response told, where it did."""
    return Ask(
        at=at,
        prompt_tokens=max(1, about.prompt_tokens),
        output_tokens=max(1, output_tokens or about.expected_output_tokens),
        chain=tuple(about.chain),
        kind=objective,
        adapter=about.adapter,
        tenant=tenant,
        about=about,
    )


class _Picker(Gateway):
    """One picker, by the settings of a configuration, which tells what it predicts. `totals` are of all decisions."""

    def __init__(self, config: Config, workers: int, rng: Random):
        admission = config.admission if config.admission.enabled else None
        super().__init__(find(config.policy), config.worker_model, workers, rng, admission)
        self.totals = Totals()
        self._config = config
        self._profiles = as_recorded(config.profiles)
        self._policies = {each.policy: find(each.policy) for each in self._profiles if each.policy}
        self._publishing: dict[int, bool] = {}

    def admit(self, worker: int, facts: Facts, now: float) -> None:
        """As everywhere."""
        self._publishing[worker] = facts.publishes_kv
        super().admit(worker, facts, now)

    def announce(self, worker: int, change: Change, due: float) -> None:
        """Nothing is heard of the caches of workers that did not publish."""
        if self._publishing[worker]:
            super().announce(worker, change, due)

    def _about(self, ask: Ask, blocks: Sequence[int], block_tokens: int) -> SchedulingRequest:
        assert ask.about is not None
        about = ask.about
        profile = choose(self._profiles, about.model or "", ask.tenant, ask.kind, about.prompt_tokens)
        # What a retry avoided then had failed then.
        return msgspec.structs.replace(about, sequence=self._sequence, profile=profile, avoid=frozenset())

    def _decide(self, request: SchedulingRequest, now: float) -> tuple[Decision, None]:
        policy = self._policies.get(request.profile.policy or "", self._policy)
        return decide(request, self.view, policy, self._model, now, self._rng, self._config.fallbacks), None

    def _outcome(self, request: SchedulingRequest, verdict: Verdict, now: float) -> Placed | Away:
        self.totals.add(self._predicted(request, verdict, now), request.prompt_tokens)
        return super()._outcome(request, verdict, now)

    def _predicted(self, request: SchedulingRequest, verdict: Verdict, now: float) -> Predicted:
        match verdict:
            case Refused(reason=reason) | Turned(cause=reason):
                return Predicted((), reason)
            case Admitted(decision=decision):
                ttft_s = predicted_ttft_s(request, self.view, self._model, decision.slots[0], now)
                return Predicted(decision.endpoints, "", decision.hit_tokens, ttft_s)
            case Failed(error=error):
                raise error


class _Recorded(_Run):
    """The run. `picker` is the only one."""

    def __init__(self, day: Day, config: Config, seed: int):
        self._day = day
        self.picker = _Picker(config, len(day.workers), Random(f"picker {seed}"))
        cluster = Cluster(_profile(day.config, _KV_TOKENS), len(day.workers), model=config.worker_model)
        super().__init__(cluster, Replay(day.asks, _BLOCK_TOKENS), seed, None, None)
        for worker in self._workers:
            worker.is_alive = False
        for each in day.presences:
            self._at(each.at, self._come if each.is_there else self._leave, self._workers[each.worker])

    def _come(self, now: float, worker: _Worker) -> None:
        tokens = self._day.workers[worker.number].kv_capacity_tokens or _KV_TOKENS
        self._revive(now, worker, DiscreteEngine(_profile(self._day.config, tokens), _BLOCK_TOKENS))

    def _leave(self, now: float, worker: _Worker) -> None:
        self._kill(now, worker)
        self.picker.retire(worker.number)

    def _gateway(self, number: int, seed: int) -> Gateway:
        return self.picker

    def _facts(self, worker: _Worker) -> Facts:
        was = self._day.workers[worker.number]
        named = {name: getattr(was, name) for name in Worker.__struct_fields__}
        return Facts(**{**named, "epoch": worker.epoch * len(self._workers) + worker.number})


def _profile(config: Config, kv_tokens: int) -> Profile:
    """Workers that are as fast as pickers assume."""
    model = config.worker_model
    return Profile(
        a=model.step_s,
        b=model.prefill_s_per_token,
        q=model.prefill_s_per_token2,
        d=model.decode_s_per_request,
        e=model.decode_s_per_context_token,
        kv_tokens=kv_tokens,
        max_batch_tokens=model.batch_tokens,
    )
