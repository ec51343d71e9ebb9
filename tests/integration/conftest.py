"""A real server for each test: Valkey from the wheel, and Redis too where one is installed."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from picker.simulation.valkey import ValkeyServer

_INSTALLED = shutil.which("redis-server")


@pytest.fixture(
    params=[None, *([Path(_INSTALLED)] if _INSTALLED else [])], ids=lambda path: path.name if path else "valkey"
)
async def redis_server(request: pytest.FixtureRequest) -> AsyncIterator[ValkeyServer]:
    async with ValkeyServer(request.param) as server:
        yield server
