"""What is fuzzed: what reads bytes from outside. A target takes any bytes and raises only what is a defect."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from picker.agent.blocks import BlockTable
from picker.agent.config import AgentConfig
from picker.agent.engines import sglang, trtllm, vllm
from picker.agent.events import Malformed, decode
from picker.agent.metrics import Unreadable as NoPage
from picker.agent.metrics import Which
from picker.config import Config, redacted
from picker.config_files import ConfigError, parse
from picker.extproc.actions import Pick, Send
from picker.extproc.budget import ByteBudget
from picker.extproc.conversation import Conversation, Settings
from picker.extproc.events import Closed, Picked
from picker.extproc.wire import building, parsing
from picker.prompts import chain
from picker.prompts.reader import PromptReader
from picker.redisview.records import Foreign, KvEvent, KvOp, LoadRecord, Snapshot, WorkerRecord
from picker.redisview.share_records import Routed, Share
from picker.requests.errors import BadRequest
from picker.requests.read import APIS, read_request
from picker.requests.rewrite import splice_model
from picker.requests.usage import Unreadable as NoUsage
from picker.requests.usage import read_usage
from picker.transport.connection import Connection
from picker.transport.frames import PREFACE, FrameType, frame
from picker.transport.limits import Limits
from tests import tiny_models
from tests.unit.http2_peer import block, prefixed
from tests.unit.test_wire import SAMPLES as MESSAGES

PATHS = sorted(APIS)
MODELS = ("parts", "headers", "chatml", "turns", "instructions", "bars", "stripping")
READER = PromptReader({name: tiny_models.load(name) for name in MODELS}, 20_000, 20_000)
CHAT = {"model": "chatml", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools": []}


@dataclass(frozen=True, slots=True)
class Target:
    """`run` is called with any bytes; `seeds` are some that make sense."""

    run: Callable[[bytes], None]
    seeds: Sequence[bytes]


def dialects(data: bytes) -> None:
    """The first byte chooses the path, the second the tokenizer and template; the rest is the body."""
    path, model, body = data[:1] or b"\0", data[1:2] or b"\0", data[2:]
    headers = {":method": "POST", ":path": f"/v1/{PATHS[path[0] % len(PATHS)]}"}
    with contextlib.suppress(BadRequest):
        request = read_request(headers, body)
        READER.read(request.prompt, MODELS[model[0] % len(MODELS)], "", request.cache_salt)
    rewritten = splice_model(body, "another")
    assert rewritten is None or b'"another"' in rewritten
    with contextlib.suppress(NoUsage):
        read_usage(body)


def chains(data: bytes) -> None:
    """Blocks of a beginning are a beginning of the blocks; in two steps it is the chain of one."""
    cut, tokens = data[:1] or b"\0", [byte * 7919 for byte in data[1:]] * 3
    start, at = chain.scope("m", "a", data[:3].hex()), len(tokens) * cut[0] // 255
    whole, head = chain.index_blocks(start, tokens), chain.index_blocks(start, tokens[:at])
    assert whole[: len(head)] == head
    assert len(whole) == len(tokens) // chain.INDEX_TOKENS
    text = chain.text_blocks(start, data)
    assert chain.text_blocks(start, data + b"more")[: max(0, len(text) - 1)] == text[: max(0, len(text) - 1)]


def kv_events(data: bytes) -> None:
    """Batches, one after the other, divided by a byte that MessagePack never uses."""
    table = BlockTable("m", max_nodes=200)
    for payload in data.split(b"\xc1"):
        with contextlib.suppress(Malformed):
            for event in decode(payload).events:
                table.begin_step()
                delta = table.apply(event)
                assert not set(delta.stored) & set(delta.removed)
    assert len(table.published) <= 200


def redis_records(data: bytes) -> None:
    """Each kind of record."""
    for kind in (LoadRecord, KvEvent, Snapshot, WorkerRecord, Share, Routed):
        with contextlib.suppress(Foreign):
            read = kind.unpack(data)  # type: ignore[attr-defined]
            # Not equal to what was read: numbers that are too large are written as the most that there is.
            assert kind.unpack(read.pack()).pack() == read.pack()  # type: ignore[attr-defined]


def configuration(data: bytes) -> None:
    """Of the picker and of the agent; what can be read can be shown."""
    text = data.decode("utf-8", "replace")
    for kind in (Config, AgentConfig):
        with contextlib.suppress(ConfigError):
            read = parse(text, kind, "fuzz.yaml")  # type: ignore[type-var]
            if isinstance(read, Config):
                redacted(read)


def ext_proc(data: bytes) -> None:
    """Messages behind their length (two bytes); each pick is answered; nothing is left at the end."""
    budget = ByteBudget(1 << 16)
    conversation, now = Conversation(Settings(max_body_bytes=1 << 12), budget), 0.0
    while len(data) > 2:
        size = int.from_bytes(data[:2], "big") % 2048
        message, data, now = data[2 : 2 + size], data[2 + size :], now + 0.1
        try:
            event = parsing.parse(message)
        except parsing.Unreadable:
            continue
        actions = conversation.receive(event, now)
        if any(isinstance(action, Pick) for action in actions):
            actions += conversation.receive(Picked(("10.0.0.1:1",), "placement"), now)
        for action in actions:
            if isinstance(action, Send):
                building.build(action)
    conversation.receive(Closed(), now)
    assert budget.taken == 0


HTTP2 = Limits(max_streams=4, max_message_bytes=300, max_header_bytes=400, stream_window_bytes=2000)


def http2(data: bytes) -> None:
    """Frames behind a greeting, in pieces of the size that the first byte says."""
    budget, piece = ByteBudget(1000), 1 + (data[:1] or b"\0")[0]
    connection, now = Connection(HTTP2, budget, 0.0), 0.0
    data = PREFACE + frame(FrameType.SETTINGS, 0, 0) + data[1:]
    for start in range(0, len(data), piece):
        now += 0.01
        connection.receive(data[start : start + piece], now)
        connection.sweep(now)
        connection.take_output()
        assert 0 <= budget.taken <= budget.limit
    connection.lose()
    assert budget.taken == 0 and not connection.streams


def metrics_pages(data: bytes) -> None:
    """Of each engine."""
    for kind in (vllm, sglang, trtllm):
        with contextlib.suppress(NoPage):
            kind.read_metrics(data, Which())


def _bodies() -> list[bytes]:
    anthropic = {"model": "m", "system": "s", "max_tokens": 3, "messages": CHAT["messages"]}
    bodies = [
        ("chat/completions", CHAT),
        ("completions", {"model": "m", "prompt": ["Hi", "you"], "usage": {"prompt_tokens": 1}}),
        ("responses", {"model": "m", "input": [{"role": "user", "content": "Hi"}], "instructions": "x"}),
        ("messages", anthropic),
        ("generate", {"model": "m", "token_ids": [1, 2, 3], "sampling_params": {}}),
    ]
    return [
        bytes([PATHS.index(path), number]) + json.dumps(body).encode()
        for path, body in bodies
        for number in range(len(MODELS))
    ]


def _configuration() -> list[bytes]:
    picker = (
        "pool: p\nredis: redis://u:p@h:1/0\nlimits: {max_streams: 5}\nprofiles:\n- name: a\n  match: {tenants: [b]}\n"
    )
    agent = "redis: redis://h\nworkers:\n- url: http://10.0.0.1:8000\n  labels: {zone: a}\n"
    return [picker.encode(), agent.encode()]


_STORED = (
    b"\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x91\x87\xa4type\xabBlockStored\xacblock_hashes\x91\x01"
    b"\xb1parent_block_hash\xc0\xa9token_ids\x94\x01\x02\x03\x04\xaablock_size\x04\xa7lora_id\xc0\xa6medium\xa3GPU\x00"
)
_RECORDS = [
    LoadRecord(1, 1, 1).pack(), KvEvent(1, 1, KvOp.STORE, (1, 2)).pack(), Snapshot(1, 1, (0, 0), (1, 2)).pack(),
    WorkerRecord(worker="w", epoch=1, endpoint="10.0.0.1:1").pack(),
]  # fmt: skip

TARGETS: dict[str, Target] = {
    "dialects": Target(dialects, _bodies()),
    "chains": Target(chains, [b"\x80" + bytes(range(200))]),
    "kv_events": Target(kv_events, [_STORED, _STORED + b"\xc1" + _STORED]),
    "redis_records": Target(redis_records, _RECORDS),
    "configuration": Target(configuration, _configuration()),
    "ext_proc": Target(ext_proc, [len(each).to_bytes(2, "big") + each for each in MESSAGES if len(each) < 2048]),
    "http2": Target(
        http2,
        [
            b"\x40" + frame(FrameType.HEADERS, 4, 1, block()) + frame(FrameType.DATA, 1, 1, prefixed(b"hi")),
            b"\x07" + frame(FrameType.PING, 0, 0, bytes(8)) + frame(FrameType.SETTINGS, 1, 0),
        ],
    ),
    "metrics_pages": Target(
        metrics_pages,
        [
            b'vllm:num_requests_running{model_name="m"} 1.0\nvllm:kv_cache_usage_perc{model_name="m"} 0.5\n',
            b'sglang:num_running_reqs{model_name="m"} 1.0\n',
            b'[{"numActiveRequests": 1, "kvCacheStats": {"usedNumBlocks": 1, "maxNumBlocks": 2}}]',
        ],
    ),
}
