"""`picker doctor --redis`: what it finds in a real Redis."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from picker.cli import app
from picker.doctor.finding import Finding
from picker.doctor.redis import check_server, examine_redis
from picker.simulation.valkey import ValkeyServer
from tests.integration.redis_servers import BINARIES, plain, running
from tests.integration.test_redis_view import Pool
from tests.waiting import until


@pytest.fixture
async def pool(redis_server: ValkeyServer) -> AsyncIterator[Pool]:
    async with Pool(redis_server) as pool:
        yield pool


async def checks(pool: Pool) -> list[str]:
    return [finding.check for finding in await examine_redis(pool.server.url, "pool")]


async def test_nothing_is_found_where_agents_publish(pool: Pool) -> None:
    agent = await pool.agent()
    await until(lambda: bool(agent.publisher.statistics().is_connected))
    assert await checks(pool) == []


async def test_an_empty_pool_is_found(pool: Pool) -> None:
    assert await checks(pool) == ["redis-no-workers"]


async def test_a_redis_that_is_not_there_is_found(redis_server: ValkeyServer) -> None:
    await redis_server.kill()
    [finding] = await examine_redis(redis_server.url, "pool")
    assert (finding.check, finding.where) == ("redis-unreached", redis_server.url)


async def test_silent_agents_another_hash_foreign_data_eviction_and_a_replica_are_found(pool: Pool) -> None:
    agent = await pool.agent()
    await until(lambda: bool(agent.publisher.statistics().is_connected))
    await pool.stop(agent)
    await pool.redis.delete(pool.keys.worker(agent.record.worker))
    await pool.redis.hset(pool.keys.meta, "hash", "md5")  # type: ignore[misc]
    await pool.redis.hset(pool.keys.load, "junk", "junk")  # type: ignore[misc]
    await pool.redis.config_set("maxmemory", "100mb")
    await pool.redis.config_set("maxmemory-policy", "allkeys-lru")
    await pool.redis.execute_command("REPLICAOF", "127.0.0.1", "1")
    expected = {"redis-silent-workers", "redis-hash", "redis-foreign", "redis-evicts", "redis-replica"}
    assert set(await checks(pool)) == expected


async def test_a_key_of_another_type_is_found(pool: Pool) -> None:
    await pool.redis.set(pool.keys.load, "text")
    assert await checks(pool) == ["redis-foreign"]


def test_a_server_that_is_too_old_is_found() -> None:
    found: list[Finding] = list(check_server({"redis_version": "6.0.16"}, "redis://host"))
    assert [finding.check for finding in found] == ["redis-old"]
    assert list(check_server({"redis_version": "6.2.0"}, "redis://host")) == []


async def test_a_password_is_needed_and_never_printed(tmp_path: Path) -> None:
    server = plain(BINARIES[0], tmp_path / "s", "requirepass right")
    async with running(server):
        [finding] = await examine_redis(server.url.replace("//", "//:s3cret@"), "pool")
    assert finding.check == "redis-unreached"
    assert "password" in finding.fix
    assert "s3cret" not in str(finding)


def test_the_command_prints_findings_and_says_what_is_no_url() -> None:
    result = CliRunner().invoke(app, ["doctor", "--redis", "redis://127.0.0.1:1", "--json"])
    assert (result.exit_code, json.loads(result.stdout)[0]["check"]) == (1, "redis-unreached")
    result = CliRunner().invoke(app, ["doctor", "--redis", "nonsense"])
    assert (result.exit_code, "is not a Redis URL" in result.stderr) == (2, True)
