"""What clients name must not stay in the view."""

from __future__ import annotations

import tracemalloc

from tests.unit.fleets import fleet


def test_models_that_nobody_serves_take_no_memory_however_long_their_names() -> None:
    view = fleet(2)
    tracemalloc.start()
    try:
        for number in range(50):
            assert not view.serving(f"{number}{'x' * 1_000_000}").any()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5_000_000
