"""Waiting for what comes true: soon where it does, long where the machine is busy, and never for ever."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(condition: Callable[[], Any], within_s: float = 60.0) -> None:
    """`condition` may be a coroutine function. Raises TimeoutError where it does not come true."""
    async with asyncio.timeout(within_s):
        while True:
            outcome = condition()
            if await outcome if inspect.isawaitable(outcome) else outcome:
                return
            await asyncio.sleep(0.01)
