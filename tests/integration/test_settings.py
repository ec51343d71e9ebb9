"""Settings that change what a client or a worker sees."""

from __future__ import annotations

import httpx
import pytest

from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import Conversation

pytestmark = pytest.mark.envoy
FAST = ("--speed", "20")


async def test_the_served_endpoint_is_named_where_the_operator_asks_for_it() -> None:
    plan = Plan(workers=2, worker=FAST, picker={"reveal_endpoint": True, "policy": "random"})
    async with Stack(plan) as stack, httpx.AsyncClient() as client:
        for _ in range(4):
            response = await client.get(f"{stack.url}/v1/models")
            number = int(response.headers["x-worker"].removeprefix("w"))
            assert response.headers["x-picker-endpoint"] == stack.endpoints[number]


async def test_the_decision_is_told_where_the_operator_asks_for_it() -> None:
    plan = Plan(workers=2, worker=FAST, picker={"reveal_decision": True})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        response = await Conversation("why").turn(client)
        told = dict(part.split("=") for part in response.headers["x-picker-decision"].split())
        assert told["policy"] == "expected-delay"
        terms = [float(told[name]) for name in ("wait", "work", "cache", "harm", "decode")]
        assert float(told["cost"]) == pytest.approx(sum(terms), abs=0.01)
        assert "x-picker-endpoint" not in response.headers


@pytest.mark.parametrize("envoy", ["fail-open", "full-duplex"])
async def test_a_model_under_another_name_reaches_the_worker_under_its_own(envoy: str) -> None:
    rewrites = {"fast": MODEL, "canary": {MODEL: 9.0, "nobody-has-this": 1.0}, "broken": "nobody-has-this"}
    plan = Plan(workers=2, envoy=envoy, worker=FAST, picker={"rewrites": rewrites})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        conversation = Conversation("renamed \U0001f600")
        for _ in range(3):
            response = await conversation.turn(client, model="fast")
            assert response.status_code == 200, response.text
        assert len(set(conversation.workers)) == 1
        assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert (await Conversation("broken").turn(client, model="broken")).status_code == 404
        header = {"x-gateway-model-name-rewrite": MODEL}
        body = {"model": "nobody-has-this", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert (await client.post("/v1/chat/completions", json=body, headers=header)).status_code == 200
        statuses = {(await Conversation(f"{i}").turn(client, model="canary")).status_code for i in range(20)}
        assert 200 in statuses


async def test_without_fallbacks_one_endpoint_is_named_as_gateways_want_it() -> None:
    plan = Plan(workers=3, envoy="original-dst", worker=FAST, picker={"fallbacks": 0})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        assert (await Conversation("one").turn(client)).status_code == 200


async def test_the_conformance_switch_lets_a_test_choose_and_see_the_endpoint() -> None:
    plan = Plan(workers=2, worker=FAST, picker={"conformance": True})
    async with Stack(plan) as stack, httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        for number in (0, 1, 1, 0):
            wanted = {"test-epp-endpoint-selection": stack.endpoints[number]}
            response = await client.get("/v1/models", headers=wanted)
            assert response.headers["x-worker"] == f"w{number}"
            assert response.headers["x-conformance-test-served-endpoint"] == stack.endpoints[number]


async def test_the_conformance_header_means_nothing_without_the_switch() -> None:
    async with Stack(Plan(workers=2, worker=FAST)) as stack, httpx.AsyncClient(base_url=stack.url) as client:
        wanted = {"test-epp-endpoint-selection": stack.endpoints[0]}
        served = {(await client.get("/v1/models", headers=wanted)).headers["x-worker"] for _ in range(20)}
        assert served == {"w0", "w1"}
