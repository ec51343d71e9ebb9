"""The benchmark of what decisions cost to record measures all its contenders."""

import pytest

from benchmarks.events.__main__ import CONTENDERS, _measure, _scrape


async def test_each_contender_is_measured_beside_the_plain_one() -> None:
    # One contender sends traces; see the extra `otel` in pyproject.toml.
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", exc_type=ImportError)
    rows = await _measure(workers=8, requests=5, rounds=1)
    assert [row.name for row in rows] == [contender.name for contender in CONTENDERS]
    assert rows[0].more_us == 0 and all(row.request_us > 0 for row in rows)


async def test_a_scrape_grows_with_the_fleet() -> None:
    small, large = [await _scrape(workers) for workers in (4, 40)]
    assert large.bytes > small.bytes > 0
