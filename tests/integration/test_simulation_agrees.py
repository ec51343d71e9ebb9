"""The same requests through real processes and through the simulation: the same hits, the same ranking of policies."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import httpx
import numpy as np
import pytest

from picker.prompts.tokenizer import ModelTokenizer
from picker.simulation import demo, trace
from picker.simulation.discrete.cluster import Cluster, simulate
from picker.simulation.discrete.outcome import Request
from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.profiles import PROFILES
from picker.simulation.stack import Plan, Stack
from picker.simulation.trace import TraceRequest
from picker.simulation.words import DEMO_TOKENIZER

pytestmark = pytest.mark.envoy
WORKERS = 3
REQUESTS = trace.load()[:90]
BLOCK = 64
RUNS = 6
TOKENIZER = ModelTokenizer.load(DEMO_TOKENIZER)


@dataclass(frozen=True)
class Seen:
    """Share of the prompts' tokens that came from a cache, and the mean time to first token."""

    hits: float
    ttft_s: float


def tokens_of(request: TraceRequest, seed: int) -> list[int]:
    assert TOKENIZER.template is not None
    return TOKENIZER.encode(TOKENIZER.template.render(request.messages_for(seed)), add_special_tokens=False)


def ask_of(request: TraceRequest, seed: int) -> Ask:
    tokens = tokens_of(request, seed)
    chain = tuple(hash(tuple(tokens[:end])) for end in range(BLOCK, len(tokens) + 1, BLOCK))
    return Ask(request.at_s, len(tokens), request.max_tokens, chain)


def simulated(policy: str, seed: int) -> list[Seen]:
    """Some of them break ties at random: for those one run is not like another, so there are several."""
    source = Replay([ask_of(each, seed) for each in REQUESTS], BLOCK)
    cluster = Cluster(PROFILES["demo"], workers=WORKERS, policy=policy)
    return [seen_of(simulate(cluster, source, ties).requests) for ties in range(RUNS)]


def seen_of(requests: Sequence[Request]) -> Seen:
    hits = sum(each.cached_tokens for each in requests) / sum(each.prompt_tokens for each in requests)
    return Seen(hits, float(np.mean([each.ttft_s for each in requests])))


def mean(runs: Sequence[Seen]) -> Seen:
    return Seen(*(float(np.mean([getattr(each, name) for each in runs])) for name in ("hits", "ttft_s")))


async def through(url: str, seed: int, endpoints: Sequence[str]) -> Seen:
    async with httpx.AsyncClient() as client:
        for endpoint in endpoints:
            (await client.post(f"http://{endpoint}/reset_prefix_cache")).raise_for_status()
    figures = demo.summarise(await demo.replay(url, REQUESTS, seed, lambda: None))
    assert figures.failures == 0
    return Seen(figures.hit_ratio, figures.ttft_mean_s)


async def real() -> dict[str, Seen]:
    model = {"step_s": 0.02, "prefill_s_per_token": 8 / 10_500, "prefill_s_per_token2": 1.5e-7,
             "decode_s_per_request": 40e-6, "decode_s_per_context_token": 3.3e-7, "batch_tokens": 1024}  # fmt: skip
    seen = {}
    for policy in ("expected-delay", "dynamo", "lmetric", "least-request"):
        plan = Plan(workers=WORKERS, picker={"policy": policy, "worker_model": model})
        async with Stack(plan) as stack:
            seen[policy] = await through(stack.url, 1, stack.endpoints)
            if policy == "expected-delay":
                seen["round-robin"] = await through(stack.round_robin_url, 2, stack.endpoints)
    return seen


@pytest.mark.timeout(480)
async def test_hits_are_within_five_points_and_the_ranking_is_the_same() -> None:
    seen = await real()
    runs = {policy: simulated(policy, 2 if policy == "round-robin" else 1) for policy in seen}
    predicted = {policy: mean(each) for policy, each in runs.items()}
    for policy, figures in seen.items():
        lowest, highest = (bound(each.hits for each in runs[policy]) for bound in (min, max))
        assert lowest - 0.05 <= figures.hits <= highest + 0.05, (policy, seen, predicted)
    for one, other in combinations(seen, 2):
        ratio = predicted[one].ttft_s / predicted[other].ttft_s
        # What the simulation tells apart by a quarter, reality must not turn round.
        if ratio > 1.25 or ratio < 0.8:
            assert (seen[one].ttft_s > seen[other].ttft_s) == (ratio > 1), (seen, predicted)
    assert min(predicted[name].ttft_s for name in ("round-robin", "least-request")) > 1.25 * predicted["dynamo"].ttft_s
    for one, other in pairwise(("dynamo", "lmetric", "expected-delay")):
        assert predicted[one].ttft_s > 1.25 * predicted[other].ttft_s
