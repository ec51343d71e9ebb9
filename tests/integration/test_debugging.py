"""What operators see of a whole stack with a real Envoy: explain, what if, tail, top, replay; and what nobody sees."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import yaml

from picker.commands.client import as_json
from picker.debug.v1 import debug_pb2 as pb
from picker.debug.v1 import debug_pb2_grpc
from picker.simulation.stack import MODEL, Plan, Stack
from tests.integration.traffic import until

pytestmark = [pytest.mark.envoy, pytest.mark.asyncio(loop_scope="module")]
MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
MARKER = "MARKER-7f3a9c"
ENDED = '"event":"decision"'
RECORDED = {"file": "decisions.jsonl", "replayable": True, "stream_length": 1000}


class Operated(Stack):
    """A stack whose picker records what can be replayed, and the commands to look at it."""

    @property
    def recording(self) -> Path:
        return self.folder / "decisions.jsonl"

    async def command(self, *arguments: object, code: int = 0) -> str:
        environment = {"PYTHONPATH": ":".join(sys.path), "PICKER_DEBUG": self.debug_addresses[0], "COLUMNS": "300"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "picker", *map(str, arguments), env=environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
        assert process.returncode == code, output.decode()
        return output.decode()

    async def lines(self, *arguments: object) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (await self.command(*arguments, "--json")).splitlines()]

    async def ask(self, prompt: str, **headers: str) -> httpx.Response:
        body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": prompt}]}
        async with httpx.AsyncClient(timeout=30) as client:
            return await client.post(f"{self.url}/v1/chat/completions", json=body, headers=headers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Operated]:
    stack = Operated(Plan(workers=3))
    events = {**RECORDED, "file": str(stack.recording)}
    object.__setattr__(stack.plan, "picker", {"events": events})
    async with stack:
        yield stack


async def ended(stack: Operated, count: int) -> list[dict[str, Any]]:
    """The last decisions, once so many have been logged by Envoy."""
    async with grpc.aio.insecure_channel(stack.debug_addresses[0]) as channel:
        stub = debug_pb2_grpc.DebugStub(channel)  # type: ignore[no-untyped-call]

        async def last() -> list[pb.Decision]:
            return [each async for each in stub.Tail(pb.TailRequest(last=count, past_only=True))]

        async def all_logged() -> bool:
            found = await last()
            return len(found) == count and all(each.outcome.details or each.verdict != "route" for each in found)

        await until(all_logged)
        return [json.loads(as_json(each)) for each in await last()]


async def test_each_of_the_last_requests_is_explained(stack: Operated) -> None:
    for number in range(6):
        reply = await stack.ask(f"question {number % 2} " * 200)
        assert reply.status_code == 200
    for decision in await ended(stack, 6):
        text = await stack.command("explain", decision["request_id"])
        assert f"route to {decision['candidates'][0]['worker']}" in text
        assert "ended: answered, status 200" in text
        assert all(term in text for term in ("wait", "work", "harm", "decode", "cost"))
        [told] = await stack.lines("explain", decision["id"])
        assert told == decision
        assert decision["outcome"]["served"] == decision["endpoints"][0]


async def test_who_was_ruled_out_is_told(stack: Operated) -> None:
    assert "cordoned: w1" in await stack.command("cordon", "w1", "--note", "test")
    await stack.ask("with one fewer")
    [decision] = await ended(stack, 1)
    assert "ruled out by cordoned: 1 (w1)" in await stack.command("explain", decision["id"])
    assert "cordoned" in await stack.command("workers", "--filter", "w1")
    assert "drained" in await stack.command("drain", "w1")
    assert "cordoned: nobody" in await stack.command("uncordon", "w1")


async def test_a_refused_and_a_cancelled_request_are_explained(stack: Operated) -> None:
    body = {"model": "no-such-model", "prompt": "hi"}
    async with httpx.AsyncClient(timeout=30) as client:
        assert (await client.post(f"{stack.url}/v1/completions", json=body)).status_code == 404
        [refused] = await ended(stack, 1)
        endless = {"model": MODEL, "prompt": "Tell me a story. " * 20, "max_tokens": 400, "stream": True}
        async with client.stream("POST", f"{stack.url}/v1/completions", json=endless) as response:
            async for _ in response.aiter_lines():
                break
    text = await stack.command("explain", refused["request_id"])
    assert "refuse 404 unknown-model" in text and "ruled out by model: 3 (" in text
    assert "ended: refused, status 404" in text
    [cancelled] = await ended(stack, 1)
    text = await stack.command("explain", cancelled["request_id"])
    assert "ended: cancelled, status 200" in text and f"route to {cancelled['candidates'][0]['worker']}" in text


async def test_what_if_of_a_request_gives_the_worker_that_it_then_goes_to(stack: Operated, tmp_path: Path) -> None:
    prompt = "a prompt that one worker has " * 100
    await stack.ask(prompt)
    await ended(stack, 1)
    file = tmp_path / "request.json"
    body = {"model": MODEL, "max_tokens": 3, "messages": [{"role": "user", "content": prompt}]}
    file.write_text(json.dumps(body))
    [imagined] = await stack.lines("explain", "--request", file)
    assert "route to" in await stack.command("explain", "--request", file)
    await stack.ask(prompt)
    [real] = await ended(stack, 1)
    assert imagined["endpoints"][0] == real["endpoints"][0]
    assert imagined["hit_tokens"] == real["hit_tokens"] > 0
    [other] = await stack.lines("explain", "--request", file, "--policy", "round-robin")
    assert other["policy"] == "round-robin"


async def test_top_shows_workers_and_verdicts(stack: Operated) -> None:
    text = await stack.command("top", "--every", "0.2", "--looks", "2")
    assert all(each in text for each in ("w0", "w1", "w2", MODEL, "pool default"))
    assert len(await stack.lines("top", "--looks", "1")) == 1


async def test_a_recording_comes_out_the_same_and_shows_what_another_policy_changes(
    stack: Operated, tmp_path: Path
) -> None:
    for number in range(8):
        await stack.ask(f"conversation {number % 3} " * 150)
    await ended(stack, 8)
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump({"policy": "round-robin"}))
    told = json.loads(await stack.command("replay", stack.recording, "--policy", other, "--json"))
    assert told["decisions"] >= 8 and told["not_reproduced"] == 0 and told["changed"] > 0
    assert told["after"]["hit_tokens"] < told["before"]["hit_tokens"]
    text = await stack.command("replay", stack.recording, "--policy", other, "--changed", "3")
    assert "decisions come out as they were recorded" in text and "hit share" in text
    played = json.loads(await stack.command("replay", stack.recording, "--policy", other, "--simulate", "--json"))
    assert played["simulated"]["routed"] == played["with --policy"]["routed"] >= 8
    assert played["with --policy"]["hit tokens"] < played["simulated"]["hit tokens"]
    text = await stack.command("replay", stack.recording, "--policy", other, "--simulate")
    assert all(row in text for row in ("predicted ttft mean s", "hit tokens", "refused", "with --policy"))


async def test_envoy_has_the_statistics_that_alerts_are_about(stack: Operated) -> None:
    async with httpx.AsyncClient() as client:
        told = (await client.get(f"http://{stack.admin_address}/stats/prometheus")).text
    wanted = set(re.findall(r"envoy_[a-z_]+(?=[{\\[])", (MONITORING / "alerts.yaml").read_text()))
    assert len(wanted) >= 5
    assert {name for name in wanted if f"\n{name}{{" not in told} == set()
    assert 'envoy_cluster_upstream_rq_active_overflow{envoy_cluster_name="picker' in told


async def test_a_retried_request_is_explained(stack: Operated) -> None:
    prompt = "a prompt that is cached on the worker that dies " * 60
    await stack.ask(prompt)
    [first] = await ended(stack, 1)
    number = int(first["candidates"][0]["worker"].removeprefix("w"))
    stack.workers[number].kill()
    assert (await stack.ask(prompt)).status_code == 200
    [retried] = await ended(stack, 1)
    await stack.restart_worker(number)
    text = await stack.command("explain", retried["request_id"])
    assert f"route to w{number}" in text
    assert f"served by {retried['outcome']['served']}, not the first choice, 2 attempts" in text


async def test_the_page_is_served_and_told_the_fleet(stack: Operated) -> None:
    async with httpx.AsyncClient() as client:
        url = f"http://{stack.page_addresses[0]}"
        assert "<title>Picker</title>" in (await client.get(url)).text
        [fleet] = (await client.get(f"{url}/api/fleet")).json()
    assert [each["worker"] for each in fleet["workers"]] == ["w0", "w1", "w2"]


async def test_a_marker_in_prompts_headers_and_adapters_shows_up_nowhere(stack: Operated, tmp_path: Path) -> None:
    planted = f"{MARKER} sk-proj {MARKER}"
    headers = {
        "authorization": f"Bearer {planted}", "cookie": planted, "x-session-id": planted, "x-custom": planted,
        "x-gateway-inference-fairness-id": planted, "x-gateway-inference-objective": planted, "user-agent": planted,
        "x-gateway-destination-endpoint": MARKER, "x-gateway-model-name-rewrite": MARKER,
    }  # fmt: skip
    bodies = [
        {"model": MODEL, "messages": [{"role": "user", "content": planted * 50}], "user": planted, "max_tokens": 3},
        {"model": MARKER, "messages": [{"role": "user", "content": planted}]},
        {"model": MODEL, "prompt": planted, "cache_salt": planted, "lora": planted},
        [planted],
        {"model": MODEL, "messages": planted, "tools": [planted]},
    ]
    before = stack.recording.read_text().count(ENDED)
    async with httpx.AsyncClient(timeout=30) as client:
        replies = [
            await client.post(f"{stack.url}/v1/{path}", json=body, headers={**headers, **more})
            for body in bodies
            for path in ("chat/completions", "completions")
            for more in ({}, {"content-encoding": MARKER})
        ]
    refused = [reply for reply in replies if reply.status_code >= 400]
    assert any("x-picker-reason" in reply.headers for reply in refused)
    await ended(stack, 1)
    file = tmp_path / "request.json"
    file.write_text(json.dumps(bodies[0]))
    seen = {
        "tail": await stack.command("tail", "--no-follow", "-n", 1000, "--json"),
        "what if": await stack.command("explain", "--request", file, "--header", f"x-session-id:{planted}", "--json"),
        "workers": await stack.command("workers", "--json"),
        "metrics": str(await stack.metrics()),
        "log": stack.picker.log.read_text(),
        "agent's log": stack.agent.log.read_text(),
        "errors": "".join(reply.text for reply in refused if "x-picker-reason" in reply.headers),
    }

    async def all_written() -> bool:
        return len(replies) <= stack.recording.read_text().count(ENDED) - before

    await until(all_written)
    seen["recording"] = stack.recording.read_text()
    assert {where for where, text in seen.items() if MARKER in text} == set()
