"""The benchmark of large fleets writes what it says, and its picker follows. Never how fast."""

from redis import Redis

from benchmarks.scale.measure import measure
from benchmarks.view.pool import Plan, write
from picker.simulation.valkey import ValkeyServer


async def test_events_are_applied_while_picks_are_made_and_no_worker_is_dirty() -> None:
    plan = Plan(8, 40)
    async with ValkeyServer() as server:
        with Redis.from_url(server.url) as redis:
            write(plan, redis)
        idle, busy = await measure(server.url, plan, [0.0, 200.0], seconds=1.0)
    # Those of the worker that marks time come too.
    assert busy.applied_per_s > idle.applied_per_s + 50 > 50
    assert idle.dirty == busy.dirty == 0
    assert busy.picks_per_s > 0
    assert 0 < busy.lag_p50_ms <= busy.lag_p99_ms
