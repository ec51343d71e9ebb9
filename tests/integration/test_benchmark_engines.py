from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest

from picker.simulation.words import DEMO_TOKENIZER
from picker.simulation.worker import Settings, SimulatedWorker

pytestmark = pytest.mark.envoy


async def test_predictions_for_engines_that_announce_their_blocks_are_right(tmp_path: Path) -> None:
    workers = [SimulatedWorker(Settings(name=f"w{number}", speed=50.0)) for number in range(2)]
    for worker in workers:
        await worker.start()
    try:
        urls = [argument for worker in workers for argument in ("--worker", f"http://{worker.endpoint}")]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.engines", *urls, "--model", "tiny-llama",
            "--tokenizer", str(DEMO_TOKENIZER), "--requests", "40", "--json", str(tmp_path / "out.json"),
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await process.wait() == 0
    finally:
        for worker in workers:
            await worker.stop()
    exchanges = msgspec.json.decode((tmp_path / "out.json").read_bytes())
    assert len(exchanges) == 40
    assert sum(exchange["predicted"] for exchange in exchanges) > 1000
