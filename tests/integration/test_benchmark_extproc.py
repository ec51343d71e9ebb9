"""The benchmark of what ext_proc adds runs, and its figures are of requests that went as meant. Never how fast."""

import math
from pathlib import Path

import pytest

from tests.integration.benchmark_runs import figures

_LABELS = ["none", "bare", "picker, grpcio", "picker", "picker, tokens", "picker, full duplex"]


@pytest.mark.envoy
async def test_a_tiny_run_measures_every_contender_without_a_failed_request(tmp_path: Path) -> None:
    found = await figures("extproc", tmp_path, "--size", "2", "--rounds", "2", "--seconds", "0.3", "--rate", "60")
    rows = found["rows"]
    assert [row["contender"] for row in rows] == _LABELS
    assert {row["body_bytes"] for row in rows} == {2048}
    assert all(row["requests"] > 0 for row in rows)
    assert all(row["failures"] == 0 for row in rows)
    assert all(0 < row["p50_ms"] <= row["p99_ms"] < math.inf for row in rows)
    assert rows[0]["added_p50_ms"] == 0
    assert [one["round"] for one in found["measurements"]] == [0] * 6 + [1] * 6
    assert set(found["idle_ms_per_s"]) == {*_LABELS[1:], "envoy"}


@pytest.mark.envoy
async def test_the_modes_stand_side_by_side(tmp_path: Path) -> None:
    arguments = ("--modes", "--size", "2", "--rounds", "1", "--seconds", "0.3", "--rate", "60")
    rows = (await figures("extproc", tmp_path, *arguments))["rows"]
    assert [row["contender"] for row in rows] == [
        "none",
        "bare",
        "headers only",
        "buffered",
        "buffered partial",
        "streamed",
        "full duplex",
        "full duplex both ways",
    ]
    assert all(row["requests"] > 0 and row["failures"] == 0 for row in rows)
