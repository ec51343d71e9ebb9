"""Coroutines that are run on the spot until they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from picker.extproc.eager import run_eagerly
from picker.threads import Threads


async def test_what_does_not_wait_is_done_at_once_and_without_a_task() -> None:
    async def answer() -> tuple[int, object]:
        return 1, asyncio.current_task()

    before = asyncio.all_tasks()
    assert run_eagerly(answer()) == (1, asyncio.current_task())
    assert asyncio.all_tasks() == before


async def test_what_it_raises_at_once_is_raised_at_once() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_eagerly(fail())


@pytest.mark.parametrize("wait", [lambda: asyncio.sleep(0), lambda: asyncio.sleep(0.01)], ids=["yields", "waits"])
async def test_what_waits_goes_on_as_a_task(wait: Callable[[], object]) -> None:
    steps: list[int] = []

    async def answer() -> str:
        steps.append(1)
        await wait()  # type: ignore[misc]
        steps.append(2)
        await asyncio.sleep(0.01)
        async with asyncio.timeout(5):  # there is a current task by now
            await asyncio.sleep(0.01)
        return "late"

    task = run_eagerly(answer())
    assert steps == [1]
    assert isinstance(task, asyncio.Task)
    assert await task == "late"
    assert steps == [1, 2]


async def test_an_error_after_a_wait_is_the_tasks() -> None:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise KeyError("x")

    task = run_eagerly(fail())
    assert isinstance(task, asyncio.Task)
    with pytest.raises(KeyError):
        await task


async def test_the_result_and_the_error_of_what_is_waited_for_arrive() -> None:
    loop = asyncio.get_running_loop()

    async def answer(future: asyncio.Future[str]) -> str:
        try:
            return await future
        except ValueError:
            return "mended"

    good, bad = loop.create_future(), loop.create_future()
    tasks = [run_eagerly(answer(good)), run_eagerly(answer(bad))]
    good.set_result("told")
    bad.set_exception(ValueError())
    assert [await task for task in tasks if isinstance(task, asyncio.Task)] == ["told", "mended"]


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_cancellation_reaches_the_place_where_it_waits(has_begun: bool) -> None:
    told: list[str] = []

    async def answer() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise
        finally:
            told.append("cleaned up")

    task = run_eagerly(answer())
    assert isinstance(task, asyncio.Task)
    if has_begun:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # A task that is cancelled before its first step never runs; its coroutine is closed all the same.
    assert told[-1] == "cleaned up"


async def test_work_in_a_thread_may_be_asked_for_on_the_spot() -> None:
    threads = Threads(1, "test")
    try:
        task = run_eagerly(threads.run(lambda: 7, 5.0))
        assert isinstance(task, asyncio.Task)
        assert await task == 7
    finally:
        threads.close()
