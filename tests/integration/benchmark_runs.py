"""Benchmarks as people run them, each in a process of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

_ROOT = Path(__file__).parents[2]


async def figures(benchmark: str, folder: Path, *arguments: str, within_s: float = 100.0) -> Any:
    """What `python -m benchmarks.<benchmark>` writes as JSON, into this folder."""
    path = folder / "found.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", f"benchmarks.{benchmark}", *arguments, "--json", str(path),
        cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), within_s)
    finally:
        if process.returncode is None:
            # An interrupt, so that it stops what it has started.
            process.send_signal(signal.SIGINT)
            await process.wait()
    assert process.returncode == 0, output.decode()
    return msgspec.json.decode(path.read_bytes())
