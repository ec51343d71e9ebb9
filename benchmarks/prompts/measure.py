"""One contender at one size, in a process of its own: time, CPU, and how long the event loop was held.

Run as `python -m benchmarks.prompts.measure`: reads a Task as JSON from stdin, writes a Measurement to stdout.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from benchmarks.prompts.contenders import CONTENDERS, MODEL, Read
from benchmarks.prompts.conversations import Conversation
from picker.prompts.tokenizer import ModelTokenizer
from picker.threads import SWITCH_INTERVAL_S

THREADS = 2
_TICK_S = 0.001


class Task(msgspec.Struct, frozen=True):
    """What to measure: `at_once` prompts of `tokens` tokens at a time, `repeats` times."""

    contender: str
    tokenizer: str
    tokens: int
    at_once: int
    repeats: int


class Measurement(msgspec.Struct, frozen=True):
    """Medians over the repeats; `wall_ms` until all prompts are read, `cpu_ms` of each, in the thread that reads it.

    `stall_ms` is the longest that the event loop was held in a repeat, beyond its tick of 1 ms; `idle_stall_ms` the
    same while nothing is read, which is what the machine adds. `held_ms` is as much of a stall as this process computed
    in, the longest of all repeats: what other processes take from it is no stall of ours.
    """

    task: Task
    wall_ms: float
    cpu_ms: float
    stall_ms: float
    worst_stall_ms: float
    idle_stall_ms: float
    held_ms: float
    peak_mb: float


class _Ticker:
    """Notes how late the loop comes back from a sleep."""

    def __init__(self) -> None:
        self.worst_s = self.held_s = 0.0

    async def run(self) -> None:
        while True:
            due, cpu = time.perf_counter() + _TICK_S, time.process_time()
            await asyncio.sleep(_TICK_S)
            late = time.perf_counter() - due
            self.worst_s = max(self.worst_s, late)
            self.held_s = max(self.held_s, min(late, time.process_time() - cpu))


async def _repeat(read: Read, bodies: list[bytes], threads: ThreadPoolExecutor) -> tuple[float, float, float, float]:
    """Wall and CPU seconds, the longest stall, and the longest of our own making."""
    loop = asyncio.get_running_loop()
    ticker = _Ticker()
    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(ticker.run())
        await asyncio.sleep(0.02)
        ticker.worst_s = ticker.held_s = 0.0
        started = time.perf_counter()
        cpu_s = await asyncio.gather(*(loop.run_in_executor(threads, _cpu_s, read, body) for body in bodies))
        wall_s = time.perf_counter() - started
        await asyncio.sleep(0.002)
        ticking.cancel()
    return wall_s, sum(cpu_s) / len(bodies), ticker.worst_s, ticker.held_s


def _cpu_s(read: Read, body: bytes) -> float:
    """Of this thread, which is where the tokenizers run too."""
    started = time.thread_time()
    read(body)
    return time.thread_time() - started


async def _idle(threads: ThreadPoolExecutor) -> float:
    return (await _repeat(_sleep, [b""], threads))[2]


def _sleep(body: bytes) -> list[int]:
    time.sleep(0.1)
    return []


async def measure(task: Task) -> Measurement:
    """Does it."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    contender = next(each for each in CONTENDERS if each.label == task.contender)
    tokenizer = ModelTokenizer.load(Path(task.tokenizer))
    read = contender.make(tokenizer)
    conversations = [Conversation(tokenizer, MODEL, task.tokens, seed) for seed in range(task.at_once)]
    if contender.is_warm:
        for conversation in conversations:
            read(conversation.history)
    numbers = count()
    bodies = [[contender.bodies(each, next(numbers)) for each in conversations] for _ in range(task.repeats)]
    gc.collect()
    gc.freeze()
    with ThreadPoolExecutor(THREADS) as threads:
        idle_s = await _idle(threads)
        found = [await _repeat(read, each, threads) for each in bodies]
    middle: Callable[[int], float] = lambda column: median(each[column] for each in found) * 1000  # noqa: E731
    return Measurement(
        task,
        wall_ms=middle(0),
        cpu_ms=middle(1),
        stall_ms=middle(2),
        worst_stall_ms=max(each[2] for each in found) * 1000,
        idle_stall_ms=idle_s * 1000,
        held_ms=max(each[3] for each in found) * 1000,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(
        msgspec.json.encode(uvloop.run(measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))))
    )
