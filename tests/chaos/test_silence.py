"""What goes away without a word is let go of by Envoy: connections that nobody closes, and on which nothing comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.faults import Rig
from tests.chaos.harness import Machine
from tests.chaos.run import rig
from tests.integration.traffic import Conversation, until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]


@pytest.fixture
async def made(tmp_path: Path) -> AsyncIterator[Rig]:
    # Pickers that look after their connections themselves would hide what Envoy does.
    async with rig("single Valkey", tmp_path, limits={"keepalive_s": 3600.0}) as made:
        yield made


@pytest.mark.skipif(not Machine.can(), reason="needs root and ip")
async def test_what_waits_for_a_machine_that_is_gone_is_answered_by_another_while_it_is_gone(made: Rig) -> None:
    async with httpx.AsyncClient(base_url=made.stack.url, timeout=90) as client:
        await client.post(f"http://{made.stack.endpoints[0]}/fault", json={"kind": "stall"})
        asking = [asyncio.ensure_future(Conversation(f"chat {n}").turn(client)) for n in range(12)]
        # The stalled worker holds its share of them, the others have answered.
        done, waiting = await asyncio.wait(asking, timeout=5)
        assert done and waiting
        with made.stack.machine.gone():
            assert {(await each).status_code for each in asking} == {200}


async def test_a_dead_connection_to_a_picker_is_found_and_every_request_gets_a_decision_again(made: Rig) -> None:
    async with httpx.AsyncClient(base_url=made.stack.url, timeout=60) as client:
        made.stack.to_picker.drop_silently()

        async def all_decided() -> bool:
            answers = [await Conversation(f"chat {number}").turn(client) for number in range(8)]
            assert {answer.status_code for answer in answers} == {200}
            return all("x-picker-decision" in answer.headers for answer in answers)

        await until(all_decided, within_s=90)
