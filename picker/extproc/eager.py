"""Runs a coroutine on the spot, as far as it goes without waiting. Most picks never wait; a task would cost more."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def run_eagerly(coroutine: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """What the coroutine returns, or a task of the rest where it has to wait. Raises what it raises.

    Until it waits for the first time there is no current task, which `asyncio.timeout` and the like want: code that
    uses them begins with `await asyncio.sleep(0)`. (Python 3.12 has eager tasks; we support 3.11.)
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    rest = asyncio.get_running_loop().create_task(_rest(coroutine, waits_for), name="rest")
    # A task that is cancelled before it begins never comes to its coroutine, which is in the middle of something.
    rest.add_done_callback(lambda _: coroutine.close())
    return rest


async def _rest(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _going_on(coroutine, waits_for)


@types.coroutine
def _going_on(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """What `yield from coroutine` does, for one that has yielded once already."""
    try:
        while True:
            try:
                yield waits_for
            except BaseException as error:  # a cancellation too is for the coroutine
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        coroutine.close()
