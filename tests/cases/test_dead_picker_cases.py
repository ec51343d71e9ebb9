"""PR-35: what clients see of a picker that is gone is what `envoy/README.md` says, with each shipped configuration."""

from __future__ import annotations

import httpx
import pytest

from picker import envoy_config
from picker.simulation.stack import Plan, Stack
from tests.integration.traffic import Conversation, until

pytestmark = pytest.mark.envoy
WITHOUT_A_PICKER = {"fail-open": 200}
"""By configuration; the others answer 503."""


@pytest.mark.parametrize("name", envoy_config.NAMES)
async def test_pr_35_a_gone_picker_is_as_documented_and_its_return_needs_no_restart_of_envoy(name: str) -> None:
    async with Stack(Plan(workers=2, envoy=name, worker=("--speed", "20"))) as stack:
        async with httpx.AsyncClient(base_url=stack.url, timeout=20) as client:
            stack.picker.kill()
            expected = WITHOUT_A_PICKER.get(name, 503)
            assert (await client.get("/v1/models")).status_code == expected
            assert (await Conversation("without").turn(client)).status_code == expected
            await stack.start_picker()

            async def is_back() -> bool:
                answered = (await Conversation("with").turn(client)).status_code == 200
                return answered and (await stack.metrics())['picker_requests_total{reason="",verdict="route"}'] > 0

            await until(is_back)
