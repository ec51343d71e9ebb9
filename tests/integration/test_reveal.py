from __future__ import annotations

import httpx
import pytest

from picker.simulation.stack import Plan, Stack

pytestmark = pytest.mark.envoy


async def test_the_served_endpoint_is_named_where_the_operator_asks_for_it() -> None:
    async with Stack(Plan(workers=2, picker={"reveal_endpoint": True})) as stack, httpx.AsyncClient() as client:
        for _ in range(4):
            response = await client.get(f"{stack.url}/v1/models")
            number = int(response.headers["x-worker"].removeprefix("w"))
            assert response.headers["x-picker-endpoint"] == stack.endpoints[number]
