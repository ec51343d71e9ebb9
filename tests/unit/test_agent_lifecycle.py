"""The state of a worker, look by look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from picker.agent.engine import EngineStatus, Models, Reach
from picker.agent.engines.kind import reachable
from picker.agent.lifecycle import Finding, Lifecycle, LifecycleSettings
from picker.agent.metrics import Counters, Metrics
from picker.redisview.records import WorkerState

IDLE = Metrics(started_at=1.0)
BUSY = replace(IDLE, running=2, counters=Counters(100, 10, 1, 5))
DOWN, DEAD, SILENT = EngineStatus(Reach.REFUSED), EngineStatus(Reach.FAILING), EngineStatus(Reach.SILENT)
LOADING, READY, UNHEALTHY = WorkerState.LOADING, WorkerState.READY, WorkerState.UNHEALTHY


def up(metrics: Metrics | None = IDLE, *names: str) -> EngineStatus:
    return EngineStatus(Reach.UP, metrics, Models(names or ("m",)))


def states(*looks: EngineStatus, step_s: float = 1.0) -> list[tuple[WorkerState, bool]]:
    lifecycle = Lifecycle()
    findings = [lifecycle.observe(look, number * step_s) for number, look in enumerate(looks)]
    return [(finding.state, finding.begins_anew) for finding in findings]


CASES: dict[str, tuple[list[EngineStatus], list[tuple[WorkerState, bool]]]] = {
    "loads until it is up, then begins once": (
        [DOWN, SILENT, DEAD, up(), up()],
        [(LOADING, False), (LOADING, False), (LOADING, False), (READY, True), (READY, False)],
    ),
    "loads until it names a model": (
        [EngineStatus(Reach.UP, IDLE), EngineStatus(Reach.UP, IDLE, Models()), up()],
        [(LOADING, False), (LOADING, False), (READY, True)],
    ),
    "is unhealthy at once when the connection is refused, and comes back anew": (
        [up(), DOWN, up(), up()],
        [(READY, True), (UNHEALTHY, False), (READY, True), (READY, False)],
    ),
    "is unhealthy at once when health says so": (
        [up(), DEAD, up()],
        [(READY, True), (UNHEALTHY, False), (READY, True)],
    ),
    "may time out once": ([up(), SILENT, up()], [(READY, True), (READY, False), (READY, False)]),
    "is unhealthy after two timeouts, and comes back as the same": (
        [up(), SILENT, SILENT, up()],
        [(READY, True), (READY, False), (UNHEALTHY, False), (READY, False)],
    ),
    "does not become ready by a tolerated timeout": (
        [up(), DOWN, SILENT],
        [(READY, True), (UNHEALTHY, False), (UNHEALTHY, False)],
    ),
    "begins anew as another process": (
        [up(), up(replace(IDLE, started_at=2.0)), up(replace(IDLE, started_at=2.0))],
        [(READY, True), (READY, True), (READY, False)],
    ),
    "begins anew as another process after timeouts": (
        [up(), SILENT, SILENT, up(replace(IDLE, started_at=2.0))],
        [(READY, True), (READY, False), (UNHEALTHY, False), (READY, True)],
    ),
    "begins anew when counters go back": ([up(BUSY), up(IDLE)], [(READY, True), (READY, True)]),
    "begins anew with another model": ([up(IDLE, "a"), up(IDLE, "b")], [(READY, True), (READY, True)]),
    "stays ready without metrics": ([up(), up(None), up()], [(READY, True), (READY, False), (READY, False)]),
    "is unhealthy while it sleeps": (
        [up(), up(replace(IDLE, sleeps=True)), up()],
        [(READY, True), (UNHEALTHY, False), (READY, False)],
    ),
}


@pytest.mark.parametrize(("looks", "expected"), CASES.values(), ids=CASES.keys())
def test_a_worker(looks: list[EngineStatus], expected: list[tuple[WorkerState, bool]]) -> None:
    assert states(*looks) == expected


def test_an_engine_that_runs_requests_without_progress_is_unhealthy_until_it_moves() -> None:
    moved = replace(BUSY, counters=replace(BUSY.counters, steps=6))
    looks = [up(BUSY), up(BUSY), up(BUSY), up(moved)]
    assert [state for state, _ in states(*looks, step_s=5.0)] == [READY, READY, UNHEALTHY, READY]


@pytest.mark.parametrize("change", [{"kv_used": 0.5}, {"running": 3}, {"counters": Counters(100, 10, 1, 6)}])
def test_steps_and_kv_blocks_are_progress_too(change: dict[str, object]) -> None:
    looks = [up(BUSY), up(replace(BUSY, **change)), up(replace(BUSY, **change))]  # type: ignore[arg-type]
    assert [state for state, _ in states(*looks, step_s=6.0)] == [READY] * 3


def test_an_idle_engine_is_not_stalled() -> None:
    assert [state for state, _ in states(*[up()] * 5, step_s=60.0)] == [READY] * 5


def test_a_new_process_gets_its_full_time_before_it_is_stalled() -> None:
    new = replace(BUSY, started_at=2.0)
    assert [state for state, _ in states(up(BUSY), up(new), up(new), step_s=8.0)] == [READY] * 3


def test_going_to_sleep_empties_the_cache_once() -> None:
    lifecycle = Lifecycle()
    asleep = up(replace(IDLE, sleeps=True))
    assert [lifecycle.observe(look, 0.0).is_emptied for look in (up(), asleep, asleep, up())] == [
        False,
        True,
        False,
        False,
    ]


def test_rates_come_from_the_last_two_looks() -> None:
    lifecycle = Lifecycle(LifecycleSettings())
    first = lifecycle.observe(up(BUSY), 10.0)
    second = lifecycle.observe(up(replace(BUSY, counters=Counters(300, 20, 1, 9))), 12.0)
    assert first == Finding(READY, begins_anew=True)
    assert (second.prefill_tokens_per_s, second.decode_tokens_per_s) == (100.0, 5.0)


def test_reasons_name_what_is_wrong() -> None:
    lifecycle = Lifecycle()
    lifecycle.observe(up(), 0.0)
    assert lifecycle.observe(DOWN, 1.0).reason == "cannot connect"
    assert lifecycle.observe(up(), 2.0).reason == ""


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("tcp://*:5557", "10.0.0.5:8000", "tcp://10.0.0.5:5557"),
        ("tcp://0.0.0.0:5557", "worker", "tcp://worker:5557"),
        ("tcp://[::]:5557", "[fd00::5]:8000", "tcp://[fd00::5]:5557"),
        ("tcp://[::ffff:127.0.0.1]:5557", "10.0.0.5:8000", "tcp://[::ffff:127.0.0.1]:5557"),
        ("tcp://10.0.0.9:5557", "10.0.0.5:8000", "tcp://10.0.0.9:5557"),
        ("ipc:///tmp/kv", "10.0.0.5:8000", "ipc:///tmp/kv"),
    ],
)
def test_an_address_bound_on_all_interfaces_is_reached_at_the_workers_host(
    bound: str, host: str, expected: str
) -> None:
    assert reachable(bound, host) == expected
