"""The benchmark of long prompts beside short ones picks all of them, and sees what the long ones cost."""

import pytest

from benchmarks.beside.measure import Plan, measure
from picker.simulation.words import DEMO_TOKENIZER


@pytest.mark.parametrize("tokenizes", [False, True])
async def test_a_tiny_run_picks_long_prompts_beside_short_ones(tokenizes: bool) -> None:
    plan = Plan(rounds=1, seconds=0.3, short_per_s=50, long_per_s=10, long_tokens=4000, conversations=2)
    found = await measure(plan, DEMO_TOKENIZER, tokenizes)
    assert found.read_as == ("tokens" if tokenizes else "text")
    for phase in (found.alone, found.beside):
        assert 0 < phase.p50_ms <= phase.p99_ms
    assert found.added_p99_ms == pytest.approx(found.beside.p99_ms - found.alone.p99_ms)
    assert found.long_cpu_ms > 0
