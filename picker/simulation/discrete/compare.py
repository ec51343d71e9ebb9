"""Several policies on the same requests, in two processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from picker.simulation.discrete import slo
from picker.simulation.discrete.capacity import STEP, Held, Mean, Runs, Search, mean
from picker.simulation.discrete.cluster import Cluster
from picker.simulation.discrete.slo import Slo
from picker.simulation.discrete.workloads import Workload

PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Question:
    """What is held: `levels` are shares of requests within the objective, `hint` an amount to begin with.

    `step` is how far two amounts are apart at least, as a part of them.
    """

    cluster: Cluster
    workload: Workload
    slo: Slo
    levels: tuple[float, ...]
    seeds: tuple[int, ...]
    hint: float
    step: float = STEP


@dataclass(frozen=True, slots=True)
class Answer:
    """Of one policy: for each level what held with each seed, and all points (amount, attainment) of the first seed."""

    policy: str
    held: dict[float, tuple[Held, ...]]
    curve: Sequence[tuple[float, float]]
    runs: int

    def amounts(self, level: float) -> list[float]:
        """What held at this level, by seed."""
        return [held.amount for held in self.held[level]]

    def amount(self, level: float) -> Mean:
        """The mean over the seeds."""
        return mean(self.amounts(level))

    def output_rate(self, level: float) -> Mean | None:
        """Output tokens a second at that amount; None where nothing held."""
        rates = [held.figures.output_rate for held in self.held[level] if held.figures]
        return mean(rates) if rates else None


def answer(question: Question, policy: str) -> Answer:
    """One policy's, with each seed beginning where the one before it ended."""
    return by_objective(question, policy, (question.slo,))[0]


def by_objective(question: Question, policy: str, slos: Sequence[Slo]) -> list[Answer]:
    """One policy's for each of several objectives, of the same runs."""
    cluster, least, easiest = replace(question.cluster, policy=policy), min(question.levels), slo.easiest(slos)
    runs = [Runs(cluster, question.workload, easiest, seed, least) for seed in question.seeds]
    return [_answer(question, policy, [Search(each, one, question.step) for each in runs]) for one in slos]


def _answer(question: Question, policy: str, searches: Sequence[Search]) -> Answer:
    hint = question.hint
    held: dict[float, list[Held]] = {level: [] for level in question.levels}
    for search in searches:
        for level in sorted(question.levels):
            one = search.held(level, held[level][-1].amount if held[level] else hint)
            held[level].append(one)
            hint = one.amount or hint
    runs = sum(len(search.points) for search in searches)
    return Answer(policy, {level: tuple(each) for level, each in held.items()}, searches[0].curve(), runs)


def answers(question: Question, policies: Sequence[str], processes: int = PROCESSES) -> Iterator[Answer]:
    """Of all policies, each as soon as it is there."""
    with ProcessPoolExecutor(min(processes, len(policies)) or 1) as pool:
        for future in as_completed([pool.submit(answer, question, policy) for policy in policies]):
            yield future.result()
