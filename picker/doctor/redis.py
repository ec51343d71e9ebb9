"""Checks of the Redis that agents and pickers share: whether it is reached, fit for the view, and written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError

from picker.doctor.finding import Finding, Severity
from picker.prompts.chain import HASH_ID
from picker.redisview.advice import advice
from picker.redisview.connection import FAILURES, bounded, connect, reason
from picker.redisview.keys import Keys
from picker.redisview.reader import Loads, Reader
from picker.redisview.records import Foreign, LoadRecord
from picker.redisview.url import redacted

_OLDEST = (6, 2)
_DEADLINE_S = 5.0
_MOST_WORKERS = 4096
_SHOWN = 5


async def examine_redis(url: str, pool: str) -> list[Finding]:
    """What is wrong with it. Raises BadRedisUrl."""
    client, where = connect(url, Keys(pool)), redacted(url)
    try:
        info = await _info(client)
        reader = Reader(client, Keys(pool), _DEADLINE_S)
        loads = await reader.loads()
        workers = [worker for worker in loads.packed if _is_load(loads.packed[worker])][:_MOST_WORKERS]
        silent = [
            worker
            for worker, registration in zip(workers, await reader.registrations(workers), strict=True)
            if registration is None
        ]
    except Foreign:
        return [_foreign(where, f"{Keys(pool).load} is of another type")]
    except FAILURES as error:
        return [_unreached(where, error)]
    finally:
        await client.aclose()
    return [*check_server(info, where), *check_pool(loads, silent, pool, where)]


def check_server(info: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """By what INFO says; nothing where the user may not ask."""
    version = str(info.get("redis_version", ""))
    if version and tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        yield _too_old(where, version)
    if info.get("role") == "slave":
        yield _replica(where)
    if int(info.get("maxmemory", 0)) and info.get("maxmemory_policy") != "noeviction":
        yield _evicts(where, info.get("maxmemory_policy"))


def check_pool(loads: Loads, silent: list[str], pool: str, where: str) -> Iterator[Finding]:
    """By what agents have written. `silent`: workers whose lease is over."""
    if not loads.packed:
        yield _no_workers(where, pool)
    if silent:
        yield _silent_workers(where, silent)
    if loads.hash_id not in (None, HASH_ID):
        yield _other_hash(where, loads.hash_id)
    foreign = sum(not _is_load(data) for data in loads.packed.values())
    if foreign:
        yield _foreign(where, f"{foreign} load records are no agent's")


async def _info(client: Redis) -> Mapping[str, Any]:
    try:
        async with bounded(_DEADLINE_S):
            info: Mapping[str, Any] = await client.info()
            return info
    except NoPermissionError:
        return {}


def _is_load(data: bytes) -> bool:
    try:
        LoadRecord.unpack(data)
    except Foreign:
        return False
    return True


def _too_old(where: str, version: str) -> Finding:
    return Finding(
        check="redis-old",
        severity=Severity.ERROR,
        where=where,
        what=f"this is Redis {version}",
        causes="agents cannot publish: commands that they use are missing",
        fix="use Redis 6.2 or later, or Valkey",
    )


def _replica(where: str) -> Finding:
    return Finding(
        check="redis-replica",
        severity=Severity.ERROR,
        where=where,
        what="this is a replica",
        causes="agents cannot publish, and pickers do not see what the others have in flight",
        fix="give the primary's address, or redis+sentinel://host:26379/NAME to follow it",
    )


def _evicts(where: str, policy: object) -> Finding:
    return Finding(
        check="redis-evicts",
        severity=Severity.WARNING,
        where=where,
        what=f"with {policy} it drops keys when it is full",
        causes="workers vanish for moments and are written anew, again and again",
        fix="CONFIG SET maxmemory-policy noeviction, and a maxmemory that has room for the view",
    )


def _no_workers(where: str, pool: str) -> Finding:
    return Finding(
        check="redis-no-workers",
        severity=Severity.ERROR,
        where=where,
        what=f"no agent has published anything in the pool {pool}",
        causes="the picker has nobody to pick",
        fix="see whether agents run, and whether their redis and pool are these",
    )


def _silent_workers(where: str, silent: list[str]) -> Finding:
    more = f" and {len(silent) - _SHOWN} more" if len(silent) > _SHOWN else ""
    return Finding(
        check="redis-silent-workers",
        severity=Severity.WARNING,
        where=where,
        what=f"agents have fallen silent: {', '.join(silent[:_SHOWN])}{more}",
        causes="these workers are not picked",
        fix="see whether their agents run and can write to Redis; what is left of gone ones vanishes by itself",
    )


def _other_hash(where: str, hash_id: object) -> Finding:
    return Finding(
        check="redis-hash",
        severity=Severity.ERROR,
        where=where,
        what=f"agents hash with {hash_id}, and this version with {HASH_ID}",
        causes="no worker gets credit for its cache",
        fix="run agents and pickers of the same version",
    )


def _foreign(where: str, what: str) -> Finding:
    return Finding(
        check="redis-foreign",
        severity=Severity.WARNING,
        where=where,
        what=what,
        causes="they are ignored; somebody else writes to keys of ours",
        fix="give the view a Redis or a user of its own (docs/redis.md), and delete what is not an agent's",
    )


def _unreached(where: str, error: BaseException) -> Finding:
    return Finding(
        check="redis-unreached",
        severity=Severity.ERROR,
        where=where,
        what=f"it cannot be read: {reason(error)}",
        causes="the picker goes on with what it knew, and after a start Envoy balances alone",
        fix=advice(error),
    )
