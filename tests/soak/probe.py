"""What must stay flat: memory, descriptors and threads of a process, keys and memory of Redis, metric series."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis

from picker.simulation.stack import Stack

BOOKS = ("picker_streams", "picker_inflight_requests", "picker_held_body_bytes", "picker_queue_requests")
"""Zero when nobody asks for anything."""

Sample = dict[str, float]


@dataclass(frozen=True, slots=True)
class Use:
    """Of a process."""

    memory_mb: float
    descriptors: int
    threads: int


def use_of(pid: int) -> Use:
    """Of a process and its children: what is started stands below a small parent that ends it with us."""
    pids = [pid, *_children(pid)]
    status = [(Path("/proc") / str(each) / "status").read_text() for each in pids]
    return Use(
        sum(_field(text, "VmRSS") for text in status) / 1024,
        sum(len(list((Path("/proc") / str(each) / "fd").iterdir())) for each in pids),
        sum(_field(text, "Threads") for text in status),
    )


def _children(pid: int) -> list[int]:
    found = [int(each) for each in (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()]
    return found + [below for each in found for below in _children(each)]


def _field(status: str, name: str) -> int:
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:"))


async def sample(stack: Stack, redis: Redis) -> Sample:
    """Everything now, by name."""
    found: Sample = {}
    for process in (stack.picker, stack.agent):
        use = use_of(process.pid)
        found |= {
            f"{process.name}: memory, MB": use.memory_mb,
            f"{process.name}: descriptors": use.descriptors,
            f"{process.name}: threads": use.threads,
        }
    found["picker-0: metric series"] = len(await stack.metrics())
    memory = await redis.info("memory")
    found["Redis: keys"] = float(await redis.dbsize())
    found["Redis: memory, MB"] = memory["used_memory"] / 2**20
    return found


async def books(stack: Stack) -> dict[str, float]:
    """What should be zero."""
    metrics = await stack.metrics()
    return {name: metrics[name] for name in BOOKS}
