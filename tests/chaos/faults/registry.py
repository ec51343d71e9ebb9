"""What a fault is, and all of them by name."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

from tests.chaos.harness import Clocks, Harness, Names
from tests.chaos.shapes import Redis
from tests.integration.relay import Relay


@dataclass
class Rig:
    """A running stack, its Redis, and the ways between its parts: to one worker, to one picker, and to Redis.

    Sentinels and clusters name their servers by address, so nobody can stand between: `to_redis` is None then.
    `names` and `clocks` are None where the machine does not let us set them.
    """

    stack: Harness
    redis: Redis
    to_redis: Relay | None = None
    names: Names | None = None
    clocks: Clocks | None = None


@dataclass(frozen=True)
class Fault:
    """`on` is a block within which it is on, and mended at its end. `part` is what it befalls: one fault at a time.

    `says` is what the design promises. `can` tells whether a rig can have it, `once` that no shape of Redis changes it.
    """

    name: str
    part: str
    says: str
    on: Callable[[Rig], AbstractAsyncContextManager[None]]
    can: Callable[[Rig], bool]
    once: bool


FAULTS: dict[str, Fault] = {}

_Make = Callable[[Rig], AsyncIterator[None]]


def _always(_: Rig) -> bool:
    return True


def fault(
    part: str, name: str, says: str, can: Callable[[Rig], bool] = _always, *, once: bool = False
) -> Callable[[_Make], _Make]:
    """Registers a generator that yields once, while its fault is on."""

    def register(make: _Make) -> _Make:
        is_once = once or part in ("worker", "events", "Envoy")
        FAULTS[name] = Fault(name, part, says, asynccontextmanager(make), can, is_once)
        return make

    return register
