"""What the comparison with other routers makes of its measurements."""

from benchmarks.peers.fronts import ALONE, Router
from benchmarks.peers.measure import CLOSED, OPEN, Measurement, Plan, turns
from benchmarks.peers.report import base_of, rows
from benchmarks.peers.rig import Front


def measured(front: str, round: int, per_s: float, cpu_ms: dict[str, float], failures: int = 0) -> Measurement:
    return Measurement(
        front=front, load=CLOSED, body_bytes=2048, round=round, requests=100, failures=failures, per_s=per_s,
        p50_ms=1.0, p99_ms=1000 / per_s, cpu_ms=cpu_ms,
    )  # fmt: skip


def test_fronts_take_turns_and_each_begins_a_round_once() -> None:
    plan = Plan({2048: 100.0}, rounds=2, seconds=1)
    fronts = [Front("a", "", {}), Front("b", "", {})]
    order = [(round, front.label, load) for _, round, front, load in turns(plan, fronts)]
    assert order == [
        (0, "a", CLOSED), (0, "a", OPEN), (0, "b", CLOSED), (0, "b", OPEN),
        (1, "b", CLOSED), (1, "b", OPEN), (1, "a", CLOSED), (1, "a", OPEN),
    ]  # fmt: skip


def test_a_row_is_the_median_of_its_rounds_and_compared_with_the_base() -> None:
    picker = {"envoy": 0.2, "picker": 0.1, "upstream": 0.05, "client": 0.03}
    router = {"router": 0.2, "upstream": 0.05, "client": 0.03}
    found = rows(
        [
            *(measured("ours", round, per_s, picker, failures=round) for round, per_s in enumerate((500, 1000, 4000))),
            *(measured("theirs", round, 2000, router) for round in range(3)),
        ],
        base="theirs",
    )
    ours, theirs = found
    assert (ours.per_s, ours.requests, ours.failures) == (1000, 300, 3)
    assert (ours.x_per_s, ours.x_p99) == (0.5, 2.0)
    assert round(ours.own_cpu_ms, 6) == 0.3
    assert round(ours.x_cpu, 6) == 1.5
    assert (theirs.x_per_s, theirs.x_p99, theirs.x_cpu) == (1, 1, 1)


def test_ratios_are_to_the_first_router_that_is_there_and_else_to_envoy_alone() -> None:
    assert base_of([ALONE, "Envoy + Picker", "smg", "vllm-router"]) == "vllm-router"
    assert base_of([ALONE, "Envoy + Picker", "smg"]) == "smg"
    assert base_of([ALONE, "Envoy + Picker"]) == ALONE


def test_a_router_that_is_not_installed_has_no_version() -> None:
    assert Router("none", "no-such-package-as-this", lambda *_: []).version is None
