"""What counts as flat; `python -m tests.soak` measures it."""

from __future__ import annotations

import pytest

from tests.soak.judge import judged

NAME = "picker-0: memory, MB"


@pytest.mark.parametrize(
    ("measured", "is_flat"),
    [
        ([100.0] * 30, True),
        ([50.0 + each for each in range(10)] + [100.0, 103.0] * 10, True),
        ([100.0 + 2 * each for each in range(30)], False),
    ],
)
def test_what_grows_after_the_warm_up_is_not_flat(measured: list[float], is_flat: bool) -> None:
    [line] = judged([{NAME: value} for value in measured])
    assert line.is_flat is is_flat
    assert line.most == max(measured)
