"""The hour runs, in short: every request is placed, and nothing is left in the books."""

import pytest

from tests.soak.hour import _page, _run
from tests.soak.judge import judged


@pytest.mark.envoy
async def test_a_few_seconds_of_it_leave_nothing_behind() -> None:
    told = await _run(seconds=3.0, per_s=50.0, transport="http2")
    assert told.sent == told.placed > 50
    assert told.failed == 0
    assert told.rest and not any(told.rest.values())
    lines = judged(told.samples)
    assert "picker: memory, MB" in {line.name for line in lines}
    assert f"{told.sent} sent, 0 failed" in _page(lines, told, 0.05, 50.0, "http2")
