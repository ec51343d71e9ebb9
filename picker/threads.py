"""Threads for work whose length clients decide: nobody waits for them for long, or behind work that was given up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

SWITCH_INTERVAL_S = 0.0005
"""For `sys.setswitchinterval`: how long a thread that computes may keep the event loop waiting. Python's default is ten
times as long, and with two threads the loop waits for both (benchmarks/prompts).
"""

T = TypeVar("T")


class Threads:
    """So many threads. Work that runs cannot be stopped; while all threads are busy with such, none is accepted."""

    def __init__(self, count: int, name: str):
        self._count = count
        self._pool = ThreadPoolExecutor(count, name)
        self._lock = threading.Lock()
        self._given_up = 0

    def __repr__(self) -> str:
        return f"<Threads {self._count}, {self._given_up} busy for nobody>"

    async def run(self, work: Callable[[], T], patience_s: float) -> T:
        """What `work` returns or raises. Raises TimeoutError at once where no thread will be free in sight."""
        if self._given_up >= self._count:
            raise TimeoutError
        # Whoever has run us on the spot so far makes a task of the rest here (`extproc/eager.py`).
        await asyncio.sleep(0)
        job = self._pool.submit(work)
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.wrap_future(job)
        finally:
            if not job.cancel():
                self._give_up(job)

    def close(self) -> None:
        """Lets go of the threads; work that runs goes on to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _give_up(self, job: Future[Any]) -> None:
        with self._lock:
            self._given_up += 1
        # At once if it has ended already.
        job.add_done_callback(self._returned)

    def _returned(self, _: Future[Any]) -> None:
        with self._lock:
            self._given_up -= 1
