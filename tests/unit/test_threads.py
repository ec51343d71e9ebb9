"""Threads that clients cannot take from one another."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from picker.threads import Threads

LONG_S = 60.0


@pytest.fixture
async def threads() -> AsyncIterator[Threads]:
    threads = Threads(2, "test")
    yield threads
    threads.close()


async def give_up(threads: Threads, stuck: threading.Event) -> None:
    with pytest.raises(TimeoutError):
        await threads.run(stuck.wait, 0.01)


async def test_results_and_errors_come_back(threads: Threads) -> None:
    assert await threads.run(lambda: 7, LONG_S) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0, LONG_S)


async def test_nobody_waits_behind_work_that_was_given_up_in_all_threads(threads: Threads) -> None:
    stuck = threading.Event()
    try:
        await give_up(threads, stuck)
        assert await threads.run(lambda: "the other one", LONG_S) == "the other one"
        await give_up(threads, stuck)
        async with asyncio.timeout(LONG_S / 2):
            with pytest.raises(TimeoutError):
                await threads.run(lambda: "none left", LONG_S)
    finally:
        stuck.set()
    async with asyncio.timeout(LONG_S):
        while "0 busy" not in repr(threads):
            await asyncio.sleep(0.01)
    assert await threads.run(lambda: "again", LONG_S) == "again"


async def test_work_that_waited_in_vain_is_not_done_later(threads: Threads) -> None:
    stuck, late = threading.Event(), threading.Event()
    async with asyncio.TaskGroup() as tasks:
        busy = [tasks.create_task(threads.run(stuck.wait, LONG_S)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await threads.run(late.set, 0.01)
        stuck.set()
        assert await asyncio.gather(*busy) == [True, True]
    await threads.run(lambda: None, LONG_S)
    assert not late.is_set()


async def test_a_cancelled_wait_gives_the_work_up(threads: Threads) -> None:
    stuck, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        stuck.wait()

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(threads.run(work, LONG_S))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
    try:
        assert "1 busy" in repr(threads)
    finally:
        stuck.set()
