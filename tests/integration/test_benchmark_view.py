"""The benchmark of the view compares things that come to the same answer. Never how fast."""

import numpy as np
from redis import Redis as BlockingRedis

from benchmarks.view.alternatives import Asking
from benchmarks.view.index_choice import SortedArrays
from benchmarks.view.measure import Task, measure
from benchmarks.view.pool import KEYS, Plan, write
from picker.fleet.index import PrefixIndex, depths
from picker.redisview.connection import connect
from picker.simulation.valkey import ValkeyServer

PLAN = Plan(12, 400)


def test_both_kinds_of_index_find_the_same() -> None:
    index, arrays = PrefixIndex(), SortedArrays(PLAN)
    for worker in range(PLAN.workers):
        index.store(worker, PLAN.held(worker))
        index.trust(worker, True)
    unknown = np.random.default_rng(4).integers(1, 2**63, 30, np.uint64).tolist()
    for number in range(20):
        prompt = [*PLAN.chain(3, number).tolist(), *unknown]
        assert depths(prompt, arrays.mask) == depths(prompt, index.owners) != []
    arrays.store(5, unknown)
    index.store(5, unknown)
    assert depths(unknown, arrays.mask) == depths(unknown, index.owners) == [(30, 1 << 5)]


async def test_queries_find_what_the_mirror_finds_and_all_is_measured() -> None:
    async with ValkeyServer() as server:
        with BlockingRedis.from_url(server.url) as redis:
            assert write(PLAN, redis) > PLAN.workers * PLAN.blocks * 8
            client = connect(server.url, KEYS)
            asking = Asking(client)
            chain = PLAN.chain(0, 0).tolist()
            asking.write(redis, {block: [0, 1, 2] for block in chain})
            assert (
                await asking.all_blocks([*chain, 1])
                == await asking.bisect([*chain, 1])
                == dict.fromkeys(range(3), len(chain))
            )
            await client.aclose()
        found = await measure(Task(server.url, PLAN, lookups=5, events=24, lags=2))
    assert [each.depth for each in found.lookups] == [0, PLAN.chain_blocks, PLAN.chain_blocks]
    assert {each.kind for each in found.choices} == {"dict of bit masks", "sorted arrays"}
