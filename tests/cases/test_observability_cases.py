"""Field cases of observability: what people reported of counts, logs and degraded modes, and that it is not so here."""

from __future__ import annotations

import dataclasses
import gzip
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import structlog
from prometheus_client.parser import text_string_to_metric_families

from picker.config import Config
from picker.config_source import ConfigSource
from picker.extproc.access_log import Outcome
from picker.extproc.actions import Answered, Pick, SendRefusal, SendResponseBodyPiece
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import (
    BodyMode,
    NotPicked,
    Picked,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
)
from picker.extproc.exchange import Exchange
from picker.requests.usage import TAIL_BYTES, Unreadable, Usage, read_usage
from picker.server import Server
from picker.simulation.words import DEMO_TOKENIZER
from picker.transport.errors import Reason
from tests.unit.fleets import Load, Worker, endpoint

CHAT = {":method": "POST", ":path": "/v1/chat/completions", "x-request-id": "r"}
TEXT = "hello there, how are you? " * 60
USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


class Rig:
    """A whole picker without ports and without Redis, over three workers; what its metrics say."""

    def __init__(self, **settings: Any):
        self.server = Server(Config(**settings), ConfigSource())
        self.view, self.picker = self.server._view, self.server._picker
        self.server._feed.synced.set()
        # No access log comes here, and nobody waits for one.
        self.server._insight._counted._has_waited = True
        for number in range(3):
            self.view.admit(Worker(f"w{number}", endpoint=endpoint(number), gpu="H100", adapters=("tuned",)), now=0.0)

    def values(self) -> dict[str, float]:
        """Samples by name and labels; of histograms the counts."""
        self.server._gauges = self.server._readings()
        self.server._insight.look(self.server._degraded(), time.monotonic())
        text = self.server._metrics.exposition("")[0].decode()
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if not sample.name.endswith(("_bucket", "_sum"))
        }

    def requests(self) -> dict[tuple[str, str], float]:
        return {key: count for key, count in self.server._metrics.verdicts().items() if count}

    async def pick(self, text: str = TEXT, model: str = "llama", **headers: str) -> Any:
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()
        return await self.picker.pick(Pick({**CHAT, **headers}, body))

    def exchange(self, settings: Settings | None = None, most_held: int = 1 << 20) -> Exchange:
        conversation = Conversation(settings or Settings(), ByteBudget(most_held))
        return Exchange(self.picker, self.server._metrics, conversation, Counter())

    def log(self, status: int, **facts: Any) -> None:
        self.server._count(
            Outcome(status, facts.pop("attempts", 1), (endpoint(0),), facts.pop("served", endpoint(0)), **facts)
        )


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    rig.picker.close()


def answer(exchange: Exchange, event: Any) -> list[Any]:
    """What the conversation says to an event; the rest is done."""
    actions = exchange.conversation.receive(event, 0.0)
    for action in actions:
        exchange.note(action)
    return actions


def sse(*events: Any, newline: str = "\n") -> bytes:
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    return "".join(f"data: {line}{newline}{newline}" for line in lines).encode()


@pytest.mark.parametrize(
    "stream",
    [
        sse({"choices": [{}]}) + sse({"usage": USAGE, "choices": []}) + sse("[DONE]"),
        sse({"usage": USAGE, "choices": []}, "[DONE]"),
        sse(*({"usage": {**USAGE, "completion_tokens": n}, "choices": [{}]} for n in range(1, 8)), "[DONE]"),
    ],
    ids=["in the message before", "in one message", "repeated"],
)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
async def test_ob_01_the_usage_of_a_stream_is_counted_once_wherever_it_stands(
    rig: Rig, stream: bytes, size: int
) -> None:
    placed = await rig.pick()
    exchange = rig.exchange()
    answer(exchange, RequestHeaders(CHAT, end_of_stream=True, response_mode=BodyMode.STREAMED))
    answer(exchange, placed)
    answer(exchange, ResponseHeaders(200, endpoint(0)))
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    for number, piece in enumerate(pieces, 1):
        answer(exchange, ResponseBody(piece, end_of_stream=number == len(pieces)))
    exchange.close(0.0)
    values = rig.values()
    assert values["picker_usage_total[('result', 'read')]"] == 1
    [decided] = rig.server._insight._recorder.ring.find("r")
    assert (decided.outcome.prompt_tokens, decided.outcome.output_tokens) == (5, 7)


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (
            b"event: response.completed\n"
            + sse({"type": "response.completed", "response": {"usage": {"input_tokens": 8, "output_tokens": 26}}}),
            Usage(8, 26),
        ),
        (
            sse({"type": "message_start", "message": {"usage": {"input_tokens": 8, "output_tokens": 1}}})
            + sse({"type": "message_delta", "usage": {"input_tokens": 8, "output_tokens": 26}})
            + sse({"type": "message_stop"}),
            Usage(8, 26),
        ),
        (sse({"choices": [], "usage": USAGE}, "[DONE]"), Usage(5, 7)),
        (json.dumps({"usage": {"input_tokens": 8, "output_tokens": 26}}).encode(), Usage(8, 26)),
    ],
)
def test_ob_02_usage_is_read_in_every_dialect(tail: bytes, usage: Usage) -> None:
    assert read_usage(tail) == usage


async def test_ob_04_each_way_to_end_has_a_label_of_its_own(rig: Rig) -> None:
    assert isinstance(await rig.pick(model="nobody"), NotPicked)
    for most, held in ((1, 1 << 20), (1 << 20, 1)):
        exchange = rig.exchange(Settings(max_body_bytes=most), held)
        answer(exchange, RequestHeaders(CHAT))
        assert any(isinstance(each, SendRefusal) for each in answer(exchange, RequestBody(b"xxxx")))
    for status in (200, 500, 0):
        placed = await rig.pick()
        if status:
            rig.picker.first_byte(placed.placement, status, placed.endpoints[0])
        rig.picker.release(placed.placement)
    for slot in list(rig.view.slots()):
        rig.view.update_facts(slot, dataclasses.replace(rig.view.facts(slot), state="draining"))  # type: ignore[type-var]
    assert isinstance(await rig.pick(), NotPicked)
    assert rig.requests() == {
        ("route", ""): 3,
        ("refuse", "unknown-model"): 1,
        ("refuse", "body-too-large"): 1,
        ("refuse", "picker-busy"): 1,
        ("refuse", "no-worker-ready"): 1,
    }
    ended = {key: value for key, value in rig.values().items() if key.startswith("picker_ended_requests_total")}
    assert sorted(ended.values()) == [1, 1, 1]
    assert {label for label in ("answered", "failed", "cancelled") if any(label in key for key in ended)} == {
        "answered", "failed", "cancelled",
    }  # fmt: skip


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("space", [" ", ""])
def test_ob_06_lines_may_end_as_they_like(newline: str, space: str) -> None:
    stream = sse({"choices": [{}]}, {"choices": [], "usage": USAGE}, "[DONE]", newline=newline)
    assert read_usage(stream.replace(b"data: ", b"data:" + space.encode())) == Usage(5, 7)


async def test_ob_06_a_line_without_an_end_is_not_kept(rig: Rig) -> None:
    exchange = rig.exchange()
    answer(exchange, RequestHeaders(CHAT, end_of_stream=True, response_mode=BodyMode.STREAMED))
    answer(exchange, Picked((endpoint(0),), "placement"))
    for _ in range(160):
        exchange.conversation.receive(ResponseBody(b"data: " + b"x" * 65_530, end_of_stream=False), 0.0)
    [answered, *_] = exchange.conversation.receive(ResponseBody(sse({"usage": USAGE}), end_of_stream=True), 0.0)
    assert isinstance(answered, Answered) and len(answered.tail) <= TAIL_BYTES
    assert read_usage(answered.tail) == Usage(5, 7)


@pytest.mark.parametrize(
    "data", [gzip.compress(sse({"choices": [{}]}, {"usage": USAGE}) * 50), b"", b"\x0b\x02\x80br", b"\xff" * 3000],
    ids=["gzip", "gzip without a body", "br", "unknown"],
)  # fmt: skip
async def test_ob_07_of_a_compressed_answer_every_byte_goes_on_and_no_usage_is_read(rig: Rig, data: bytes) -> None:
    placed = await rig.pick()
    exchange = rig.exchange()
    answer(exchange, RequestHeaders(CHAT, end_of_stream=True, response_mode=BodyMode.FULL_DUPLEX))
    answer(exchange, placed)
    answer(exchange, ResponseHeaders(200, endpoint(0)))
    size = max(1, len(data) // 20)
    cuts = [data[start : start + size] for start in range(0, len(data), size)] or [b""]
    out = [
        each.data
        for number, piece in enumerate(cuts, 1)
        for each in answer(exchange, ResponseBody(piece, end_of_stream=number == len(cuts)))
        if isinstance(each, SendResponseBodyPiece)
    ]
    assert b"".join(out) == data
    assert "picker_usage_total[('result', 'read')]" not in {key for key, value in rig.values().items() if value}


async def test_ob_08_what_is_merely_absent_is_no_line_in_the_log() -> None:
    rig = Rig()
    for number in range(3, 20):
        rig.view.admit(Worker(f"w{number}", endpoint=endpoint(number), publishes_kv=False), now=0.0)
    with structlog.testing.capture_logs() as logged:
        for number in range(100):
            placed = await rig.pick(f"cold {number}")
            rig.picker.first_byte(placed.placement, 200, "")
            rig.picker.release(placed.placement)
        rig.view.sweep(1e9)
    rig.picker.close()
    assert logged == []


NEEDS_OTHERS = {
    # Of Redis, of other pickers, of streams, of queues, of full memories: each has tests of its own, which read the
    # same figures where they come from.
    "dirty_slots", "view_lag_events", "view_reloads_total", "foreign_records_total", "redis_connected", "peers",
    "peers_inflight_requests", "sharing_refused_total", "sharing_lost_total", "decisions_dropped_total", "index_blocks",
    "memo_evictions_total", "memo_tokens_hits_total", "streams", "streams_opened_total", "held_body_bytes",
    "queue_requests", "queue_bytes", "queue_tokens", "queue_oldest_seconds", "queue_wait_seconds",
    "queue_class_requests", "unknown_objectives_total", "preempted_total", "workers_unattended",
    "platform_refused_total",
}  # fmt: skip


async def move_everything(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        placed = await rig.pick(**{"x-request-id": f"r{number}"})
        rig.picker.first_byte(placed.placement, 200, endpoint(9))
        rig.picker.answered(
            placed.placement, json.dumps({"usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 4}}}).encode()
        )
        rig.picker.release(placed.placement)
    for tail in (b"{}", b'{"usage": 5}'):
        placed = await rig.pick()
        rig.picker.first_byte(placed.placement, 200, "")
        rig.picker.answered(placed.placement, tail)
    await rig.pick(model="tuned")
    rig.view.cordon({facts.worker for facts in rig.view.roster().values() if facts.endpoint == placed.endpoints[0]})
    await rig.pick()
    await rig.pick(model="nobody")
    rig.log(200, attempts=2)
    rig.log(200, is_broken=True)
    rig.log(200, served=endpoint(1))
    answer(rig.exchange(), RequestTrailers())
    rig.server._metrics.misbehaved(next(iter(Reason)))
    rig.server._metrics.loop_lag_seconds.observe(0.1)
    slots = list(rig.view.slots())
    rig.view.update_load(slots[0], Load(1, running=3, waiting=2, kv_used=0.5), now=1.0)
    rig.view.update_facts(slots[1], Worker("w1", endpoint=endpoint(1), state="draining"))
    rig.view.admit(Worker("w7", endpoint=endpoint(7)), now=100.0)
    rig.view.update_load(slots[2], Load(1), now=100.0)
    rig.view.inflight._observed_s[slots[0]] = 50.0
    rig.view.inflight._learn()
    now = time.monotonic()
    rig.view.reuse.placed(slots[0], 10_000_000, 9_000_000, now)
    rig.view.reuse.counted(slots[0], 10_000_000, 10, now)
    rig.view.lengths.note("llama", 8000, 10)
    await rig.server._truth.look(now)
    await rig.server._truth.look(now + 125)
    with monkeypatch.context() as patch:
        patch.setattr(rig.picker, "_read", None)
        await rig.pick()


async def test_ob_09_every_documented_metric_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tokenizers={"llama": str(DEMO_TOKENIZER)})
    await rig.server._truth.look(time.monotonic())
    before = rig.values()
    with structlog.testing.capture_logs():
        await move_everything(rig, monkeypatch)
    after = rig.values()
    rig.picker.close()
    names = {key.partition("[")[0].removesuffix("_count") for key in after}
    moved = {key.partition("[")[0].removesuffix("_count") for key, value in after.items() if before.get(key) != value}
    ours = {name.removeprefix("picker_") for name in names if name.startswith("picker_")}
    still = ours - {name.removeprefix("picker_") for name in moved} - NEEDS_OTHERS
    assert still == set()
    assert ours >= NEEDS_OTHERS - {"queue_wait_seconds", "queue_class_requests"}


@pytest.mark.parametrize("number", ["-Infinity", "NaN", "Infinity", "1e999"])
def test_ob_11_numbers_that_are_no_json_spoil_no_usage_behind_them(number: str) -> None:
    answer = f'{{"choices": [{{"logprobs": {{"logprob": {number}}}}}], "usage": {json.dumps(USAGE)}}}'
    assert read_usage(answer.encode()) == Usage(5, 7)


@pytest.mark.parametrize(
    "tail",
    [
        sse({"choices": [{}]}, "[DONE]"),
        sse({"choices": [{}], "usage": None}, "[DONE]"),
        sse({"choices": [{}]}, {"choices": [{}]}, {"choices": [{}]})[:-9],
    ],
    ids=["absent", "null", "cut off"],
)
async def test_ob_13_no_usage_is_unknown_and_not_zero(rig: Rig, tail: bytes) -> None:
    placed = await rig.pick()
    rig.picker.first_byte(placed.placement, 200, "")
    rig.picker.answered(placed.placement, tail)
    rig.picker.release(placed.placement)
    values = rig.values()
    assert values["picker_usage_total[('result', 'missing')]"] == 1
    assert not any(key.startswith("picker_told") and value for key, value in values.items())
    [decided] = rig.server._insight._recorder.ring.find("r")
    assert decided.outcome.prompt_tokens is None and decided.outcome.output_tokens is None


def test_ob_13_a_usage_that_is_none_is_told_apart() -> None:
    with pytest.raises(Unreadable):
        read_usage(b'{"usage": {"prompt_tokens": -1}}')


async def test_ob_14_each_degraded_mode_has_a_gauge_and_each_pick_says_how_it_knew_its_prompt(rig: Rig) -> None:
    def modes() -> set[str]:
        return {
            key.split("'")[3]
            for key, value in rig.values().items()
            if key.startswith("picker_degraded") and value
        }  # fmt: skip

    rig.server._feed._is_connected = True
    calm = modes()
    slots = list(rig.view.slots())
    rig.view.update_load(slots[0], Load(1), now=100.0)
    assert "workers_stale" in modes() - calm
    rig.view.cordon({"w0", "w1", "w2"})
    for _ in range(5):
        rig.view.breakers.failed(slots[1], 0.0)
    rig.server._feed.synced.clear()
    assert {"workers_cordoned", "breakers_open", "fleet_unread", "no_worker_ready"} <= modes()
    documented = {key.split("'")[3] for key in rig.values() if key.startswith("picker_degraded")}
    assert documented >= {"redis", "prefixes_dirty", "events_lag", "prediction"}
    rig.server._feed.synced.set()
    rig.view.cordon(())
    await rig.pick()
    await rig.picker.pick(Pick({**CHAT, ":method": "GET"}, b""))
    rungs = {key for key, value in rig.values().items() if key.startswith("picker_prefix_rung_total") and value}
    assert rungs == {"picker_prefix_rung_total[('rung', 'text')]", "picker_prefix_rung_total[('rung', 'load')]"}
