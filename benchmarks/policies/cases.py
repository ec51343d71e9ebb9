"""The cases: workload, fleet, objective. And scales: how much of them is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from picker.scheduling.policies import POLICIES
from picker.simulation.discrete.cluster import Cluster
from picker.simulation.discrete.compare import Question
from picker.simulation.discrete.slo import parse
from picker.simulation.discrete.traces import Slice
from picker.simulation.discrete.workloads import Workload, named, of_trace
from picker.simulation.profiles import PROFILES

LEVELS = (0.90, 0.95, 0.99)
HEADLINE = "assistants"
DEFAULT = "expected-delay"
BASE = "round-robin"
FEW = (DEFAULT, "lmetric", "llm-d-tuned", BASE, "least-request", "dynamo-8", "llm-d")
SENSITIVE = (BASE, "llm-d", "lmetric", DEFAULT)
_READ_METRICS = ("llm-d", "llm-d-tuned", "preble")
"""These read published loads, which come ten times a second to them, and once a second to the others."""


class Scale(msgspec.Struct, frozen=True):
    """How much is run: requests of a trace, simulated seconds of users, seeds, steps between amounts."""

    name: str
    requests: int | None
    seconds: float
    seeds: int
    step: float
    policies: tuple[str, ...]


SCALES = {
    "quick": Scale("quick", 1200, 120.0, 1, 0.06, FEW),
    "usual": Scale("usual", 1500, 120.0, 3, 0.06, tuple(POLICIES)),
    "full": Scale("full", None, 260.0, 3, 0.03, tuple(POLICIES)),
}

Make = Callable[[Path, Scale], Workload]


@dataclass(frozen=True, slots=True)
class Case:
    """A table of the page. `hint` is an amount to begin the search with.

    `also`: other objectives, which some policies are asked for of the same runs.
    """

    name: str
    title: str
    profile: str
    workers: int
    slo: str
    make: Make
    hint: float
    also: tuple[str, ...] = ()

    def objectives(self, policy: str) -> tuple[str, ...]:
        """Its own first."""
        return (self.slo, *(self.also if policy in SENSITIVE else ()))

    def question(self, policy: str, traces: Path, scale: Scale) -> Question:
        """What to ask for one policy. Raises BadTrace."""
        cluster = Cluster(
            PROFILES[self.profile],
            workers=self.workers,
            policy=policy,
            metrics_s=0.1 if policy in _READ_METRICS else 1.0,
        )
        seeds = tuple(range(1, scale.seeds + 1))
        return Question(cluster, self.make(traces, scale), parse(self.slo), LEVELS, seeds, self.hint, scale.step)


def _trace(file: str, start: float) -> Make:
    return lambda traces, scale: of_trace(traces / file, Slice(start, 1.0, scale.requests))


def _users(name: str, least_s: float = 0.0) -> Make:
    def make(traces: Path, scale: Scale) -> Workload:
        seconds = max(scale.seconds, least_s)
        return named(name, 0.4 * seconds, seconds)

    return make


_CONVERSATIONS = _trace("conversation_trace.jsonl", 0.5)
_SYNTHETIC = _trace("synthetic_trace.jsonl", 0.5)
_AZURE_CHAT = _trace("AzureLLMInferenceTrace_conv.csv", 0.5)
_AZURE_CODE = _trace("AzureLLMInferenceTrace_code.csv", 0.5)
_SLOW, _FAST = "ttft=2s+1.5x,tpot=100ms", "ttft=2s+1.5x,tpot=50ms"
_USERS = "ttft=1.5s,tpot=50ms"
_OTHERS = tuple(
    slo for ttft in ("1s", "1.5s", "3s") for tpot in (35, 50, 100) if (slo := f"ttft={ttft},tpot={tpot}ms") != _USERS
)
LONG_S = 400.0
"""So long a few users need to have found what can be found in a cache."""

CASES = (
    Case(HEADLINE, "64 kinds of assistants, prompts of 12k", "32b", 8, _USERS, _users("assistants", LONG_S), 180,
         _OTHERS),
    Case("conversations-70b", "Mooncake conversations, second half", "70b", 16, _SLOW, _CONVERSATIONS, 1.5),
    Case("synthetic-70b", "Mooncake synthetic, second half", "70b", 16, _SLOW, _SYNTHETIC, 1.3),
    Case("azure-chat-70b", "Azure conversations, second half: nothing shared", "70b", 16, _SLOW, _AZURE_CHAT, 9),
    Case("agents-8b", "agents, contexts up to 64k tokens", "8b", 16, "ttft=2s,tpot=50ms", _users("agents"), 140),
    Case("rag-32b", "64 documents of 20k tokens", "32b", 8, _USERS, _users("rag", LONG_S), 110),
    Case("shared-32b", "150 shared prompts, answers of 1k", "32b", 8, _USERS, _users("shared-prompts"), 350),
    Case("conversations-8b", "Mooncake conversations, second half", "8b", 16, _FAST, _CONVERSATIONS, 4),
    Case("azure-code-70b", "Azure code, second half: nothing shared", "70b", 16, _SLOW, _AZURE_CODE, 9),
    Case("synthetic-8b", "Mooncake synthetic, second half", "8b", 16, _FAST, _SYNTHETIC, 4),
    Case("chat-8b", "chat, contexts up to 6k tokens", "8b", 4, "ttft=1s,tpot=50ms", _users("chat"), 700),
    Case("small-agents-8b", "agents, up to 32k", "8b", 16, "ttft=1s,tpot=50ms", _users("small-agents"), 250),
    Case("agents-70b", "agents, contexts up to 64k", "70b", 16, "ttft=2s,tpot=100ms", _users("agents"), 80),
    Case("long-contexts-8b", "chat, 1 % of 100k tokens", "8b", 8, _FAST, _users("long-contexts"), 400),
    Case("adapters-8b", "chat with 48 LoRA adapters", "8b", 8, _FAST, _users("adapters"), 80),
)  # fmt: skip
