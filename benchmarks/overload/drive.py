"""Twice what simulated workers can do, through a real Envoy: what each client got, and what the picker was like."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from random import Random

import httpx
import msgspec

from benchmarks.common.load import poisson
from benchmarks.common.memory import resident_bytes
from picker.scheduling.model import WorkerModel
from picker.simulation.profiles import PROFILES
from picker.simulation.stack import MODEL, Plan, Stack

WORKERS = 4
SLOWNESS = 10.0
OUTPUT_TOKENS = 20
KV_BLOCKS = 2048
"""Of a worker: as many as 50 prompts fill, so that caches are full before the overload begins."""
_SENTENCE = "The quick brown fox jumps over the lazy dog, and the dog does not mind at all. "
_SENTENCES = 30
_PROFILE = PROFILES["8b"]
WORKER_MODEL = WorkerModel(
    step_s=SLOWNESS * _PROFILE.a,
    prefill_s_per_token=SLOWNESS * _PROFILE.b,
    prefill_s_per_token2=SLOWNESS * _PROFILE.q,
    decode_s_per_request=SLOWNESS * _PROFILE.d,
    decode_s_per_context_token=SLOWNESS * _PROFILE.e,
)
TTFT_S = 2.0
MAX_WAIT_S = 2.0
CLASSES = (
    {"name": "interactive", "priority": 100, "ttft_s": TTFT_S},
    {"name": "default", "share": 0.1, "ttft_s": TTFT_S},
    {"name": "batch", "priority": -100, "share": 0.05, "fill": 0.5, "max_wait_s": MAX_WAIT_S},
)
MIX = (0.2, 0.4, 0.4)
"""Of all requests, by class."""
ADMISSION = {"classes": CLASSES, "total": {"requests": 40}, "room": {"tokens": 1024}}
MEMORIES = {
    "limits": {"prompt_states_bytes": 1 << 20, "prompt_tokens_bytes": 1 << 20},
    "events": {"ring": 200, "ring_bytes": 1 << 20},
}
"""So small that they are full before the overload begins: what still grows then has no bound."""
HELD = ("streams", "inflight_requests", "inflight_prefill_seconds", "held_body_bytes")
QUEUED = ("queue_requests", "queue_bytes", "queue_tokens")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client got, and how long that took; `status` is 0 where it got nothing."""

    kind: str
    status: int
    reason: str
    took_s: float
    prompt_tokens: int = 0

    def late_s(self, prefill_s: float) -> float:
        """How long after it could be known a refusal has come; below 0 where it was foreseen.

        Known it was when the request came, or when what was left of its time no longer sufficed: of its longest wait,
        or of its objective less what its own prefill takes.
        """
        time_s = {"queue-timeout": MAX_WAIT_S, "deadline-unreachable": TTFT_S - prefill_s}.get(self.reason, 0.0)
        has_waited = self.took_s > time_s / 4
        return self.took_s - time_s if has_waited else self.took_s


@dataclass(frozen=True, slots=True)
class Report:
    """One run. Rates in requests a second; `memory_mb` of the picker in the first and the last third."""

    capacity: float
    offered: float
    seconds: float
    answers: list[Answer]
    routed: float
    refused: float
    prefill_s: float
    memory_mb: tuple[float, float]
    left_over: dict[str, float]


async def run(seconds: float, factor: float = 2.0, seed: int = 1) -> Report:
    """Finds what the workers can do, and offers `factor` times that."""
    worker = ("--profile", "8b", "--speed", str(1 / SLOWNESS), "--num-blocks", str(KV_BLOCKS))
    settings = {"admission": ADMISSION, "worker_model": msgspec.structs.asdict(WORKER_MODEL), **MEMORIES}
    limits = httpx.Limits(max_connections=None)
    async with (
        Stack(Plan(workers=WORKERS, worker=worker, picker=settings)) as stack,
        httpx.AsyncClient(base_url=stack.url, timeout=60, limits=limits) as client,
    ):
        clients = _Clients(client, Random(seed))
        capacity, prompt_tokens = await _capacity(clients, max(10.0, seconds / 4))
        before = await stack.metrics()
        async with asyncio.TaskGroup() as tasks:
            memory = tasks.create_task(_memory(stack.picker.pid, seconds))
            answers = await clients.offer(factor * capacity, seconds)
        left_over, after = await _left_over(stack)
        routed, refused = (_requests(after, verdict) - _requests(before, verdict) for verdict in ("route", "refuse"))
        return Report(
            capacity,
            factor * capacity,
            seconds,
            answers,
            routed,
            refused,
            WORKER_MODEL.prefill_on_one_s(prompt_tokens),
            memory.result(),
            left_over,
        )


class _Clients:
    """Requests that share nothing, of three classes."""

    def __init__(self, client: httpx.AsyncClient, rng: Random):
        self._client = client
        self._rng = rng
        self._number = 0

    async def offer(self, rate: float, seconds: float) -> list[Answer]:
        """So many a second, whatever becomes of them."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            asked = []
            for at in poisson(rate, seconds, self._rng):
                await asyncio.sleep(max(0.0, began + at - time.monotonic()))
                [kind] = self._rng.choices([str(each["name"]) for each in CLASSES], MIX)
                asked.append(tasks.create_task(self.ask(kind)))
        return [each.result() for each in asked]

    async def ask(self, kind: str) -> Answer:
        """One request, and what has become of it."""
        self._number += 1
        prompt = f"{self._number} {_SENTENCE * _SENTENCES}"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
        sent = time.monotonic()
        try:
            response = await self._client.post(
                "/v1/completions", json=body, headers={"x-gateway-inference-objective": kind}
            )
        except httpx.HTTPError:
            return Answer(kind, 0, "", time.monotonic() - sent)
        took_s = time.monotonic() - sent
        tokens = response.json()["usage"]["prompt_tokens"] if response.status_code == 200 else 0
        return Answer(kind, response.status_code, response.headers.get("x-picker-reason", ""), took_s, tokens)


async def _capacity(clients: _Clients, seconds: float) -> tuple[float, int]:
    """Requests a second with always enough of them there, and the tokens of a prompt. The first third warms up."""
    done: list[tuple[float, Answer]] = []
    began = time.monotonic()

    async def user() -> None:
        while time.monotonic() - began < seconds:
            answer = await clients.ask("interactive")
            done.append((time.monotonic() - began, answer))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(10 * WORKERS):
            tasks.create_task(user())
    served = [at for at, answer in done if answer.status == 200 and seconds / 3 <= at < seconds]
    return len(served) / (seconds * 2 / 3), max(answer.prompt_tokens for _, answer in done)


async def _memory(pid: int, seconds: float) -> tuple[float, float]:
    """Means over the first and the last third, in MB."""
    samples = []
    for _ in range(max(3, int(seconds))):
        samples.append(resident_bytes(pid) / 2**20)
        await asyncio.sleep(1.0)
    third = len(samples) // 3
    return sum(samples[:third]) / third, sum(samples[-third:]) / third


async def _left_over(stack: Stack, within_s: float = 30.0) -> tuple[dict[str, float], dict[str, float]]:
    """What is still in the queue and the books, once nothing changes any more; and all metrics."""
    deadline = time.monotonic() + within_s
    while True:
        metrics = await stack.metrics()
        found = {name: metrics[f"picker_{name}"] for name in (*QUEUED, *HELD)}
        if not any(found.values()) or time.monotonic() > deadline:
            return found, metrics
        await asyncio.sleep(0.2)


def _requests(metrics: dict[str, float], verdict: str) -> float:
    return sum(value for name, value in metrics.items() if name.startswith("picker_requests_total") and verdict in name)
