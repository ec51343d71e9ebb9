"""Ends what runs when the process is told to end, in an orderly way and once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


async def run_until_signal(
    work: Coroutine[Any, Any, None], announce: Callable[[signal.Signals], None]
) -> signal.Signals | None:
    """Runs `work`, which SIGINT, SIGTERM or SIGHUP cancels. Returns the signal that did, or None.

    `announce` is called at once. Later signals are ignored: what `work` cleans up is not interrupted by them.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(work)
    received: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        if not received:
            received.append(number)
            task.cancel()
            announce(number)

    for number in _heeded():
        loop.add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
    return received[0] if received else None


def _heeded() -> list[signal.Signals]:
    # A shell's background job has SIGINT ignored, which would leave `kill -INT` without effect. An ignored SIGHUP is
    # nohup's, and meant.
    hang_up = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hang_up]
