"""What the users of docs/redis.md may not do: what somebody who has an agent's or a picker's password is kept from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from redis.exceptions import NoPermissionError

from picker.redisview.keys import Keys
from tests.integration.redis_servers import BINARIES, Server, plain, running
from tests.integration.test_redis_deployments import ACL_LINES

KEYS = Keys("default")
ELSEWHERE = [
    ("FLUSHALL",), ("FLUSHDB",), ("KEYS", "*"), ("SCAN", 0), ("CONFIG", "GET", "*"), ("CONFIG", "SET", "maxmemory", 1),
    ("ACL", "LIST"), ("SHUTDOWN",), ("EVAL", "return 1", 0), ("SCRIPT", "FLUSH"), ("MONITOR",), ("CLIENT", "LIST"),
    ("REPLICAOF", "NO", "ONE"), ("MODULE", "LIST"), ("SUBSCRIBE", "x"), ("PUBLISH", "x", "y"),
    ("SET", "other", 1), ("HSET", "picker1:{another}:load", "w", 1), ("RENAME", KEYS.load, "x"),
    ("HSET", "picker2:{default}:load", "w", 1),
]  # fmt: skip
"""What nobody of ours needs."""


@pytest.fixture(params=BINARIES, ids=lambda path: path.name)
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Server]:
    server = plain(request.param, tmp_path / "server")
    async with running(server):
        for user in ACL_LINES:
            await _add(server, user, ACL_LINES[user])
        yield server


async def _add(server: Server, user: str, rules: Sequence[str]) -> None:
    await server.ask("ACL", "SETUSER", user, *(rule.replace("PASSWORD", user) for rule in rules))


async def refused(server: Server, user: str, commands: Sequence[Sequence[str | int]]) -> None:
    for command in commands:
        with pytest.raises(NoPermissionError):
            await server.ask(*command, username=user, password=user)


async def test_an_agents_user_may_do_nothing_but_an_agents_work(server: Server) -> None:
    forbidden = [
        ("HSET", KEYS.cordons, "w1", "why"),
        ("HGET", KEYS.cordons, "w1"),
        ("HSET", KEYS.platform, "quotas", "[]"),
        ("HGETALL", KEYS.state),
        ("HINCRBYFLOAT", KEYS.spending, "q", 1),
        ("SET", KEYS.share(0), "x"),
        ("XADD", KEYS.routed, "*", "r", "x"),
        ("XADD", KEYS.decisions, "*", "d", "x"),
        ("XREVRANGE", KEYS.decisions, "+", "-"),
        ("DEL", KEYS.load),
        ("HDEL", KEYS.load, "w1"),
        ("HGETALL", KEYS.load),
    ]
    await refused(server, "picker-agent", [*ELSEWHERE, *forbidden])
    await server.ask("HSET", KEYS.worker("w1"), "epoch", 1, username="picker-agent", password="picker-agent")


async def test_an_agent_can_be_bound_to_the_names_of_its_workers(server: Server) -> None:
    rules = [rule.replace(KEYS.worker("*"), KEYS.worker("w1")) for rule in ACL_LINES["picker-agent"]]
    assert rules != ACL_LINES["picker-agent"]
    await _add(server, "bound", rules)
    await server.ask("HSET", KEYS.worker("w1"), "epoch", 1, username="bound", password="bound")
    others = KEYS.worker("w2")
    await refused(
        server, "bound", [("HSET", others, "record", "{}"), ("PEXPIRE", others, 1), ("HMGET", others, "epoch")]
    )


async def test_a_pickers_user_may_register_nobody(server: Server) -> None:
    forbidden = [
        ("HSET", KEYS.worker("w1"), "record", "{}"),
        ("DEL", KEYS.worker("w1")),
        ("XADD", KEYS.events, "*", "e", "x"),
        ("SET", KEYS.tokenizer("0" * 64), "x"),
        ("HSET", KEYS.meta, "hash", "another"),
        ("DEL", KEYS.meta),
        ("HSET", KEYS.platform, "quotas", "[]"),
        ("EXPIRE", KEYS.platform, 1),
    ]
    await refused(server, "picker", [*ELSEWHERE, *forbidden])
    assert await server.ask("HGETALL", KEYS.worker("w1"), username="picker", password="picker") == {}
