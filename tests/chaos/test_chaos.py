"""The short form of the chaos suite; `python -m tests.chaos` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import FAULTS
from tests.chaos.run import rig, suffer
from tests.chaos.shapes import SHAPES

SHORT = (
    "worker killed",
    "agent killed",
    "Redis killed",
    "one of two pickers killed",
    "Redis full",
    "pickers' disk full",
)


@pytest.mark.envoy
@pytest.mark.timeout(300)
async def test_no_request_is_lost_to_any_of_these_and_the_view_is_right_again(tmp_path: Path) -> None:
    shape = next(iter(SHAPES))
    async with rig(shape, tmp_path) as made:
        for fault in SHORT:
            verdict = await suffer(made, shape, [fault])
            assert verdict.is_well, (fault, verdict)
            assert verdict.fates.refused == {}, fault
            assert verdict.fates.answered == verdict.fates.sent > 20, fault


def test_the_short_form_is_part_of_the_long_one() -> None:
    assert set(SHORT) <= set(FAULTS)
