"""Field cases of prefixes: who shares one, what is credited, what is forgotten."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import zmq.asyncio

from picker.agent.blocks import BlockTable
from picker.agent.engine import EngineStatus, Models, Reach
from picker.agent.events import Cleared, Removed, Stored, decode
from picker.agent.lifecycle import Lifecycle
from picker.agent.metrics import Metrics as EngineMetrics
from picker.agent.subscriber import SubscriberSettings
from picker.config import Config
from picker.extproc.actions import Pick
from picker.extproc.events import Picked
from picker.fleet.fence import Fence
from picker.fleet.mirror import Mirror
from picker.fleet.placed import PlacedBlocks
from picker.fleet.tally import Tally
from picker.fleet.view import View
from picker.picking import Picker
from picker.placing import Placement, Placer
from picker.prompts import chain
from picker.prompts.prefix import PrefixChain
from picker.prompts.reader import PromptReader
from picker.redisview.records import KvEvent, KvOp, WorkerState
from picker.requests.read import read_request
from picker.scheduling.disaggregation import Disaggregation
from picker.telemetry.metrics import Metrics
from tests import tiny_models
from tests.integration.test_agent_subscriber import Log, Publisher, connected, running, subscriber
from tests.unit.fleets import Worker, endpoint, fleet
from tests.unit.test_decide import request, route, send
from tests.waiting import until

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EXACT = PromptReader({"llama": tiny_models.load("chatml")})
BY_TEXT = PromptReader({})
WORDS = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture
def context() -> Iterator[zmq.asyncio.Context]:
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


def prefix(reader: PromptReader, path: str = CHAT, **fields: Any) -> PrefixChain:
    body = json.dumps({"model": "llama", **fields}).encode()
    read = read_request({":method": "POST", ":path": path}, body, True)
    return reader.read(read.prompt, "llama", "", read.cache_salt)


def shared(one: PrefixChain, other: PrefixChain) -> int:
    """Leading blocks in common."""
    return next(
        (n for n, pair in enumerate(zip(one.blocks, other.blocks, strict=False)) if pair[0] != pair[1]),
        min(len(one.blocks), len(other.blocks)),
    )


def user(text: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def scope_blocks(tokens: list[int], adapter: str = "", salt: str = "") -> list[int]:
    return chain.index_blocks(chain.scope("llama", adapter, salt), tokens)


def test_px_02_short_prompts_share_nothing_but_themselves() -> None:
    for size in (1, 63, 64, 65):
        chains = [scope_blocks([seed] * size) for seed in range(3)]
        assert [len(each) for each in chains] == [size // 64] * 3
        assert len({tuple(each) for each in chains}) == (3 if size >= 64 else 1)
        assert scope_blocks([1] * size) == chains[1]
    view = fleet(3)
    went = Counter(send(view, request(tokens=40, chain_id=n, exact=True), seed=n) for n in range(30))
    assert max(went.values()) - min(went.values()) <= 3, "no affinity from the model's name alone"


def tool(name: str) -> dict[str, Any]:
    about = WORDS * 700
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {"type": "object"}}}


def test_px_03_tools_and_template_arguments_are_part_of_the_prefix() -> None:
    messages = user(WORDS * 50)
    mine, yours = ([tool(f"{who}_{n}") for n in range(12)] for who in ("mine", "yours"))
    one, again, other = (prefix(EXACT, messages=messages, tools=tools) for tools in (mine, mine, yours))
    assert one.exact
    assert one.blocks == again.blocks and len(one.blocks) > 100
    assert shared(one, other) <= 1
    quiet, loud = (
        prefix(EXACT, messages=messages, chat_template_kwargs={"enable_thinking": thinks}) for thinks in (False, True)
    )
    assert (
        quiet.blocks
        and quiet.blocks == prefix(EXACT, messages=messages, chat_template_kwargs={"enable_thinking": False}).blocks
    )
    assert (quiet.prompt_tokens, quiet.blocks) != (loud.prompt_tokens, loud.blocks)


def test_px_07_a_list_of_texts_is_the_text_that_engines_make_of_it() -> None:
    plain, parts = prefix(EXACT, messages=user(WORDS * 50)), [{"type": "text", "text": WORDS * 50}]
    assert prefix(EXACT, messages=user(parts)).blocks == plain.blocks != []
    image = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}
    reader, said = PromptReader({"llama": tiny_models.load("parts")}), user(WORDS * 50)
    plain, before, after = (
        prefix(reader, messages=messages) for messages in (said, [*said, *user([image])], user([image, *parts]))
    )
    assert shared(before, plain) >= len(plain.blocks) - 1 > 5, "what stands before an image is known"
    assert shared(after, plain) <= 1, "what stands behind it is not"


def test_px_08_the_base_model_and_its_adapters_share_nothing() -> None:
    view = View()
    for number in range(3):
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), adapters=("a", "b")), now=0.0)
        view.index.trust(slot, True)
    tokens = list(range(6400))
    view.index.store(1, scope_blocks(tokens))
    view.index.store(2, scope_blocks(tokens, "a"))

    def winners(model: str) -> set[int]:
        _, adapter = view.base_and_adapter(model)
        wanted = request(model=model, chain=scope_blocks(tokens, adapter))
        return {route(view, wanted, seed=seed).slots[0] for seed in range(30)}

    assert winners("llama") == {1}
    assert winners("a") == {2}
    assert winners("b") == {0, 1, 2}


def event(hashes: list[int], tokens: list[int], **more: Any) -> bytes:
    fields = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": None, "token_ids": tokens}
    return msgspec.msgpack.encode([1.0, [{**fields, "block_size": 64, "lora_id": None, **more}], 0])


def test_px_09_names_of_adapters_and_salts_in_extra_keys_are_what_they_are() -> None:
    tokens = list(range(64))
    table = BlockTable("llama")
    for data in (
        event([1], tokens, lora_name="adapter-116", extra_keys=[["adapter-116"]]),
        event([2], tokens, extra_keys=[["s1"]]),
        event([3], tokens, lora_name="adapter-116", extra_keys=[["adapter-116", "s1"]]),
    ):
        for each in decode(data).events:
            table.apply(each)
    wanted = [scope_blocks(tokens, *scope) for scope in (("adapter-116", ""), ("", "s1"), ("adapter-116", "s1"))]
    assert table.published == {block for blocks in wanted for block in blocks}
    assert not table.published & {*scope_blocks(tokens), *scope_blocks(tokens, "", "s2"), *scope_blocks(tokens, "s1")}


async def test_px_14_however_a_topic_spells_the_worker_it_is_the_one_of_the_connection(
    context: zmq.asyncio.Context,
) -> None:
    publisher, log = Publisher(context), Log()
    try:
        async with running(publisher.serve(), subscriber(context, publisher, log).run()):
            await connected(publisher, log)
            for value, topic in enumerate((b"kv@10.0.0.5@m", b"kv@10.0.0.5:8000@m")):
                batch = msgspec.msgpack.encode([1.0, [{"type": "BlockRemoved", "block_hashes": [value]}], 0])
                number = publisher.next
                await publisher.publish_payload(batch, live=False)
                await publisher.send(topic, number.to_bytes(8, "big"), batch)
            await until(lambda: log.entries == [[0], [1]])
    finally:
        publisher.close()


def test_px_15_ten_thousand_workers_come_and_go_and_nothing_is_left() -> None:
    """A hundred blocks each instead of a thousand, to be done in seconds."""
    view = View()
    room = len(view.known)
    for cycle in range(10_000):
        slot = view.admit(Worker("w", epoch=cycle), now=float(cycle))
        view.index.trust(slot, True)
        view.index.store(slot, range(cycle * 100, cycle * 100 + 100))
        for block, exact in ((-2 * cycle - 1, True), (-2 * cycle - 2, False)):
            booking = view.place(slot, [block], exact, 0.1, 64, now=float(cycle))
            view.inflight.release(booking, now=float(cycle))
        view.retire(slot)
        view.sweep(float(cycle))
        assert view.hit_blocks([cycle * 100]).max() == 0
    for _ in range(room):
        view.sweep(20_000.0)
    assert len(view.index) == 0
    assert len(view.known) <= 4 * room
    assert not view.known.any()
    assert view.hit_blocks([1_000_000 - 100]).max() == 0


async def test_px_16_events_that_are_late_bring_nobody_back() -> None:
    view, rounds = View(), 300
    mirror = Mirror(view, Tally())

    async def come_and_go(number: int) -> None:
        slot = view.admit(Worker("w", epoch=number), now=0.0)
        fence = Fence("w", number, slot)
        fence.restart(0)
        mirror.fences.add(fence)
        mirror.settle(fence)
        for seq in range(1, 20):
            mirror.apply(fence, KvEvent(number, seq, KvOp.STORE, (seq,)), 0.0)
            await asyncio.sleep(0)
            if view.slot_of("w", number) is None:
                break
        mirror.fences.drop("w", number)
        if view.slot_of("w", number) is not None:
            view.retire(slot)
        # The rest of what was on its way.
        for seq in range(20, 40):
            mirror.apply(fence, KvEvent(number, seq, KvOp.STORE, (seq,)), 0.0)

    await asyncio.gather(*(come_and_go(number) for number in range(rounds)))
    assert view.hit_blocks([1]).max() == view.hit_blocks([25]).max() == 0
    for _ in range(2 * rounds):
        view.sweep(0.0)
    assert len(view.index) == 0


def test_px_19_cleared_means_cleared_and_so_does_falling_asleep_without_a_word() -> None:
    view = fleet(1)
    mirror, fence = Mirror(view, Tally()), Fence("w0", 1, 0)
    fence.restart(0)
    mirror.fences.add(fence)
    table = BlockTable("llama")
    stored = table.apply(Stored([1], None, list(range(64)), 64)).stored
    mirror.apply(fence, KvEvent(1, 1, KvOp.STORE, tuple(stored)), 0.0)
    assert view.hit_blocks(stored)[0] == 1
    assert table.apply(Cleared()).cleared
    mirror.apply(fence, KvEvent(1, 2, KvOp.CLEAR), 0.0)
    assert view.hit_blocks(stored)[0] == 0

    lifecycle, models = Lifecycle(), Models(("llama",))
    awake, asleep = (EngineStatus(Reach.UP, EngineMetrics(sleeps=sleeps), models) for sleeps in (False, True))
    lifecycle.observe(awake, 0.0)
    finding = lifecycle.observe(asleep, 1.0)
    assert (finding.state, finding.is_emptied) == (WorkerState.UNHEALTHY, True)


async def test_px_21_what_is_lost_is_asked_for_once_and_comes_before_what_follows(context: zmq.asyncio.Context) -> None:
    publisher, log = Publisher(context), Log()
    follower = subscriber(context, publisher, log, SubscriberSettings(recheck_s=60.0))
    try:
        async with running(publisher.serve(), follower.run()):
            await connected(publisher, log)
            for value in range(1, 21):
                await publisher.publish(value, live=not 11 <= value <= 14)
            await until(lambda: len(log.entries) == 20)
            await publisher.send(b"", (publisher.next - 1).to_bytes(8, "big"), publisher.ring[-1][1])  # once more
            await publisher.publish(21)
            await until(lambda: len(log.entries) == 21)
    finally:
        publisher.close()
    assert log.entries == [[value] for value in range(1, 22)]
    assert follower.statistics().lost == 0


async def test_px_21_without_an_answer_the_worker_gets_no_credit_until_it_is_known_again(
    context: zmq.asyncio.Context,
) -> None:
    publisher, log = Publisher(context), Log()
    quick = SubscriberSettings(reply_timeout_s=0.05, replay_deadline_s=0.1, recheck_s=60.0)
    follower = subscriber(context, publisher, log, quick)
    try:
        async with running(follower.run()):  # and nobody serves replays
            await connected(publisher, log, replays=False)
            await publisher.publish(1, live=False)
            await publisher.publish(2)
            await until(lambda: log.entries[-1:] == [[2]])
    finally:
        publisher.close()
    assert log.entries[-2:] == ["lost", [2]]
    assert follower.statistics().replays_failed >= 1


async def test_px_22_a_replay_without_topics_is_read(context: zmq.asyncio.Context) -> None:
    for topics in (False, True):
        publisher, log = Publisher(context, topics=topics), Log()
        try:
            for value in range(5):
                await publisher.publish(value)
            async with running(publisher.serve(), subscriber(context, publisher, log).run()):
                await until(lambda log=log: len(log.entries) == 5)
        finally:
            publisher.close()
        assert log.entries == [[value] for value in range(5)]


@pytest.mark.parametrize("tokens", [16, 32, 48, 64])
def test_px_25_part_of_a_block_on_a_slower_tier_is_no_hit(tokens: int) -> None:
    """Nor is the whole of it, here: only what the GPU can hit at once is credited, and in blocks of 64 tokens."""
    prompt = [*range(tokens), *range(1000, 1064)]
    cpu, gpu = BlockTable("llama"), BlockTable("llama")
    cpu.apply(Stored([1], None, list(range(64)), 64, medium="CPU"))
    gpu.apply(Stored([1], None, list(range(64)), 64, medium="GPU"))
    cpu.apply(Removed([1], medium="GPU"))
    gpu.apply(Removed([1], medium="CPU"))
    held = [len(table.published & set(scope_blocks(prompt))) for table in (cpu, gpu)]
    assert held == [0, 1 if tokens == 64 else 0]


def test_px_26_two_hours_of_new_prompts_leave_memory_flat() -> None:
    """360,000 prompts of 50 KB, a hundred blocks each; of them 20,000, which is ten times what there is room for."""
    placed = PlacedBlocks(ttl_s=1800.0, blocks_per_slot=2000)
    sizes, started, half = [], time.process_time(), 0.0
    for number in range(20_000):
        placed.place(number % 4, range(number * 100, number * 100 + 100), now=number * 0.02)
        if number % 100 == 0:
            placed.expire(number * 0.02)
        if number == 10_000:
            half = time.process_time() - started
        sizes.append(len(placed._owners))
    assert max(sizes) <= 4 * 2000
    assert placed.owners(19_999 * 100) and not placed.owners(0)
    assert time.process_time() - started < 4 * half + 1.0, "old ones cost no more to drop"


async def pick(picker: Picker, **fields: Any) -> Picked:
    body = json.dumps({"model": "llama", **fields}).encode()
    answer = await picker.pick(Pick({":method": "POST", ":path": CHAT}, body))
    assert isinstance(answer, Picked) and answer.placement is not None
    return answer


async def test_px_28_questions_about_one_long_system_prompt_share_it() -> None:
    picker = Picker(Config(), fleet(8, publishes_kv=False), BY_TEXT, Metrics(), lambda: False)
    system, hits, went = WORDS * 180, [], Counter[str]()
    for number in range(50):
        answer = await pick(picker, messages=[{"role": "system", "content": system}, *user(f"Question {number}?")])
        assert isinstance(answer.placement, Placement)
        hits.append(answer.placement.decision.hit_tokens)
        went[answer.endpoints[0]] += 1
        picker.first_byte(answer.placement, 200, "")
        picker.release(answer.placement)
    picker.close()
    assert hits[0] == 0 and min(hits[1:]) > 1500
    assert len(went) == 1, "as long as there is no load to spread"


def test_px_29_the_prefill_worker_gets_the_credit_for_what_it_computed() -> None:
    view = View()
    for number, role in enumerate(("prefill", "prefill", "decode", "decode")):
        label = {Disaggregation().label: role}
        slot = view.admit(Worker(f"w{number}", endpoint=endpoint(number), labels=label, publishes_kv=False), now=0.0)
        view.index.trust(slot, True)
    placer = Placer(Config(disaggregation=Disaggregation(min_new_tokens=2048)), view)
    first = placer.place(request(tokens=12_800), 0.0)
    assert isinstance(first, Placement) and first.prefill is not None
    placer.answered(first, 200, "", 1.0)
    placer.release(first, 2.0)
    view.approximate.clear(first.decision.slots[0])  # the decode worker has evicted it
    again = placer.place(request(tokens=12_800), 3.0)
    assert isinstance(again, Placement)
    roles = {2, 3} if again.prefill is None else {again.prefill.slots[0]}
    assert again.decision.slots[0] in (2, 3), "roles do not mix"
    assert again.prefill is None or roles == {first.prefill.slots[0]}
    assert again.prefill is None or again.prefill.hit_tokens > 10_000


class Slow:
    """A tokenizer that takes its time for each piece of text."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls = seconds, 0

    def read(self, *arguments: Any) -> PrefixChain:
        self.calls += 1
        time.sleep(self.seconds)
        return BY_TEXT.read(*arguments)

    def is_slow(self, *_: Any) -> bool:
        return True


async def test_px_30_a_tokenizer_that_is_too_slow_delays_a_few_and_then_nobody_until_it_is_back() -> None:
    limits = msgspec.structs.replace(Config().limits, tokenize_budget_s=0.05)
    slow = Slow(1.0)
    picker = Picker(Config(limits=limits), fleet(2), slow, Metrics(), lambda: False)  # type: ignore[arg-type]
    waits = []
    for _ in range(20):
        started = time.monotonic()
        answer = await pick(picker, messages=user(WORDS * 100))
        waits.append(time.monotonic() - started)
        assert isinstance(answer.placement, Placement) and answer.placement.decision.hit_tokens == 0
        picker.release(answer.placement)
    assert slow.calls == Config().limits.tokenizer_threads, "the others did not even try"
    assert sorted(waits)[len(waits) // 2] < 0.05
    slow.seconds = 0.0
    await until(lambda: picker._tokenizers._given_up == 0)
    calls = slow.calls
    await pick(picker, messages=user(WORDS * 100))
    assert slow.calls == calls + 1, "it is asked again"
    picker.close()


class Broken:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def read(self, *_: Any) -> PrefixChain:
        raise self.error

    def is_slow(self, *_: Any) -> bool:
        return True


@pytest.mark.parametrize("error", [ValueError("garbage"), TimeoutError(), MemoryError(), KeyError("x"), OSError(500)])
async def test_px_31_a_prompt_that_cannot_be_tokenised_is_placed_by_load(error: Exception) -> None:
    broken: Any = Broken(error)
    picker = Picker(Config(), fleet(2), broken, Metrics(), lambda: False)
    answer = await pick(picker, messages=user("x" * 1_000_000))
    assert len(answer.endpoints) == 2
    picker.close()


def test_px_34_a_request_that_failed_leaves_no_credit() -> None:
    outcomes = {"refused": (200, endpoint(1)), "400": (400, ""), "500": (500, ""), "served": (200, "")}
    for publishes_kv in (True, False):
        for name, (status, served) in outcomes.items():
            view = fleet(2, publishes_kv=publishes_kv)
            placer = Placer(Config(), view)
            placement = placer.place(request(subset=frozenset({endpoint(0)})), 0.0)
            assert isinstance(placement, Placement)
            placer.answered(placement, status, served, 0.1)
            placer.release(placement, 0.2)
            assert view.hit_blocks(request().chain)[0] == (100 if name == "served" else 0), name


def test_px_34_a_client_that_leaves_before_an_answer_leaves_the_credit_there() -> None:
    """The engine goes on until it notices; where it publishes events, they have the last word."""
    view = fleet(1)
    placer = Placer(Config(), view)
    placement = placer.place(request(), 0.0)
    assert isinstance(placement, Placement)
    placer.release(placement, 0.2)
    assert view.hit_blocks(request().chain)[0] == 100
    view.sweep(6.0)
    assert view.hit_blocks(request().chain)[0] == 0


def test_px_34_a_turn_that_failed_keeps_the_credit_of_those_before_it() -> None:
    view = fleet(1, publishes_kv=False)
    placer, now = Placer(Config(), view), 0.0
    for tokens, status in ((640, 200), (1280, 200), (1920, 400)):
        placement = placer.place(request(tokens=tokens), now)
        assert isinstance(placement, Placement)
        placer.answered(placement, status, "", now)
        placer.release(placement, now)
    assert view.hit_blocks(request(tokens=1920).chain)[0] == 20


def test_px_35_a_very_long_prompt_costs_in_proportion_and_has_a_stable_prefix() -> None:
    text = "".join(chr(97 + n * 7 % 26) for n in range(2_000_000))

    def read(size: int) -> tuple[PrefixChain, float]:
        started = time.process_time()
        found = prefix(BY_TEXT, COMPLETIONS, prompt=text[:size])
        return found, time.process_time() - started

    (half, half_s), (whole, whole_s) = read(1_000_000), read(2_000_000)
    assert whole.blocks[: len(half.blocks)] == half.blocks
    assert whole_s < 4 * half_s + 0.05
    view = fleet(2, publishes_kv=False)
    view.place(1, [1, 2, 3], False, 0.1, 192, now=0.0)
    view.place(0, [4, 5, 6], False, 0.1, 192, now=0.0)
    view.place(0, whole.blocks, False, 0.1, 500_000, now=1.0)
    assert view.hit_blocks([1, 2, 3])[1] == 3
    assert view.hit_blocks([4, 5, 6])[0] == 3, "one request does not take all of a worker's index"


def test_px_37_cold_groups_spread_evenly_over_idle_workers() -> None:
    view = fleet(8)
    placer, went = Placer(Config(), view), Counter[int]()
    for number in range(64):
        now = number * 10.0
        view.sweep(now)
        placement = placer.place(request(chain_id=number), now)
        assert isinstance(placement, Placement)
        slot = placement.decision.slots[0]
        went[slot] += 1
        view.index.store(slot, request(chain_id=number).chain)
        placer.answered(placement, 200, "", now + 1)
        placer.release(placement, now + 2)
    assert len(went) == 8
    assert max(went.values()) <= 10 and min(went.values()) >= 6
