"""docs/metrics.md lists what /metrics exposes, all of it and nothing else.

`python -m tests.unit.test_metrics_reference` renews its table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from picker.config import Config
from picker.config_source import ConfigSource
from picker.server import Server
from picker.telemetry.labels import OTHER
from picker.telemetry.metrics import Metrics
from picker.telemetry.reference import rows, table
from picker.telemetry.tallies import CounterTally, HistogramTally
from picker.telemetry.workers import escape, lines, take
from tests.unit.fleets import Load, Worker, fleet

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
_BEGIN, _END = "<!-- table -->\n", "\n<!-- end -->"
CONVENTION = re.compile(r"picker_[a-z0-9_]+")


def server(**settings: object) -> Server:
    """One that was looked at once by the loop, over a fleet of three."""
    server = Server(Config(**settings), ConfigSource())  # type: ignore[arg-type]
    for number in range(3):
        slot = server._view.admit(Worker(f"w{number}", gpu="H100"), now=0.0)
    server._view.reuse.placed(slot, 1000, 500, 0.0)
    server._view.reuse.counted(slot, 1000, 500, 0.0)
    server._truth.readings = server._truth._read(0.0)
    server._sizing.read(0.0)
    server._waiting = server._picker.admitting.by_class()
    server._gauges = server._readings()
    server._insight.look(server._degraded(), 0.0)
    return server


def documented() -> str:
    return DOCS.read_text().partition(_BEGIN)[2].partition(_END)[0]


async def test_the_table_is_what_metrics_expose() -> None:
    assert documented() == table(row for row in rows(server()._metrics) if row.name.startswith("picker_"))


async def test_names_follow_the_conventions() -> None:
    for row in rows(server()._metrics):
        if row.name.startswith(("process_", "python_")):
            continue
        assert CONVENTION.fullmatch(row.name) and row.text.endswith("."), row
        assert (row.kind == "counter") == row.name.endswith("_total"), row


async def test_with_the_switch_the_reference_pickers_names_are_there_too() -> None:
    names = {row.name for row in rows(server(metrics_compatible=True)._metrics)}
    assert {
        "llm_d_epp_average_kv_cache_utilization",
        "llm_d_epp_average_queue_size",
        "llm_d_epp_ready_endpoints",
        "llm_d_epp_request_running",
        "llm_d_epp_request_total",
        "llm_d_epp_scheduler_e2e_duration_seconds",
        "inference_pool_average_kv_cache_utilization",
        "inference_pool_average_queue_size",
        "inference_pool_ready_pods",
        "inference_pool_per_pod_queue_size",
        "inference_objective_request_total",
        "inference_objective_running_requests",
    } <= names
    assert not any(row.name.startswith(("llm_d", "inference_")) for row in rows(server()._metrics))


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_lines_made_by_hand_read_like_the_others(accept: str) -> None:
    view = fleet(2)
    view.update_load(next(iter(view.slots())), Load(1, running=2, waiting=1, kv_used=0.25), now=0.0)
    metrics = Metrics()
    metrics.add_lines(lambda: lines(take(view, 0.0, most=10)))
    body, content_type = metrics.exposition(accept)
    assert body.endswith(b"# EOF\n") == ("openmetrics" in content_type)
    found = {each.name: each for each in text_string_to_metric_families(body.decode().removesuffix("# EOF\n"))}
    running = {sample.labels["worker"]: sample.value for sample in found["picker_worker_running_requests"].samples}
    assert running == {"w0": 2.0, "w1": 0.0}
    assert found["picker_worker_info"].samples[0].labels["version"] == "0.32.0"


def test_only_so_many_workers_have_series() -> None:
    assert len(take(fleet(20), 0.0, most=5).facts) == 5
    assert "".join(lines(take(fleet(0), 0.0, most=5))).count("\n# TYPE") > 5


def test_labels_cannot_break_out() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'


def test_label_sets_are_bounded_and_the_rest_is_other() -> None:
    counter = CounterTally(CollectorRegistry(), "x", "X.", ("a", "b"), most=3)
    for number in range(10):
        counter.add((str(number), "y"))
    assert dict(counter.items()) == {("0", "y"): 1, ("1", "y"): 1, ("2", "y"): 1, (OTHER, OTHER): 7}


def test_workers_that_are_gone_make_room_for_new_ones() -> None:
    counter = CounterTally(CollectorRegistry(), "x", "X.", ("worker",), most=3)
    for name in ("a", "b", "c"):
        counter.add((name,))
        counter.keep({"a", "c", "d"})
    counter.add(("d",))
    assert dict(counter.items()) == {("a",): 1, ("c",): 1, ("d",): 1}


def test_a_tallied_histogram_reads_as_any_other_with_exemplars() -> None:
    metrics = Metrics()
    histogram = HistogramTally(metrics.registry, "picker_x_seconds", "X.", "model", (0.1, 1.0), most=2)
    for model, value in (("m", 0.05), ("m", 0.1), ("m", 0.5), ("m", 7.0), ("n", 0.2), ("o", 0.2), ("p", 0.2)):
        histogram.add(model, value)
    histogram.exemplify("m", 0.5, "abc")
    text = metrics.exposition("application/openmetrics-text")[0].decode()
    lines = [line for line in text.splitlines() if line.startswith("picker_x_seconds") and '"m"' in line]
    assert lines[0] == 'picker_x_seconds_bucket{le="0.1",model="m"} 2.0'
    assert lines[1].startswith('picker_x_seconds_bucket{le="1.0",model="m"} 3.0 # {trace_id="abc"} 0.5')
    assert lines[2:] == [
        'picker_x_seconds_bucket{le="+Inf",model="m"} 4.0',
        'picker_x_seconds_count{model="m"} 4.0',
        'picker_x_seconds_sum{model="m"} 7.65',
    ]
    assert 'picker_x_seconds_count{model="other"} 2.0' in text


if __name__ == "__main__":
    found = table(row for row in rows(server()._metrics) if row.name.startswith("picker_"))
    DOCS.write_text(DOCS.read_text().replace(f"{_BEGIN}{documented()}{_END}", f"{_BEGIN}{found}{_END}"))
