"""The recipes for grpcurl in docs/debugging.md, as they stand there, by a real grpcurl on a real debug port."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from picker.debug.v1 import debug_pb2 as pb
from tests.integration.debug_rig import Rig, debug_rig
from tests.unit.fleets import fleet

DOCS = Path(__file__).parents[2] / "docs"
GRPCURL = Path(sys.executable).parent / "grpcurl"
pytestmark = pytest.mark.skipif(not GRPCURL.exists(), reason="grpcurl is not installed; it comes with the extra test")
ENDLESS = ("WatchFleet", "Tail")


def recipes() -> list[str]:
    """Commands over one or several lines, without what is said beside them."""
    text = re.sub(r" +# .*", "", (DOCS / "debugging.md").read_text())
    return [re.sub(r"\s*\n\s+", " ", found) for found in re.findall(r"(?m)^ {4}(grpcurl .*(?:\n {6}.*)*)", text)]


def called(recipe: str) -> str:
    return recipe.rpartition("/")[2].split()[0]


@pytest_asyncio.fixture
async def rig() -> AsyncIterator[Rig]:
    async with debug_rig(fleet(3)) as rig:
        answer = await rig.pick("REQUEST_ID")
        rig.picker.release(answer.placement)
        await rig.pick("another", model="nobody")
        yield rig


async def run(recipe: str, rig: Rig) -> tuple[str, str]:
    """Standard output and standard error. Streams that never end are cut off."""
    arguments = shlex.split(re.sub(r"[\d.]+:9190", rig.address, recipe))[1:]
    if called(recipe) in ENDLESS:
        arguments = ["-max-time", "1.5", *arguments]
    process = await asyncio.create_subprocess_exec(
        GRPCURL, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        output, errors = await process.communicate()
    return output.decode(), errors.decode()


@pytest.mark.parametrize("recipe", recipes())
async def test_each_recipe_of_the_page_is_answered(rig: Rig, recipe: str) -> None:
    output, errors = await run(recipe, rig)
    assert errors == "" or (called(recipe) in ENDLESS and "DeadlineExceeded" in errors)
    assert output.strip()


async def test_what_is_told_is_the_same_as_over_grpc(rig: Rig) -> None:
    [explain] = [recipe for recipe in recipes() if called(recipe) == "Explain"]
    output, _ = await run(explain, rig)
    [told] = (await rig.stub.Explain(pb.ExplainRequest(id="REQUEST_ID"))).decisions
    assert f'"id": "{told.id}"' in output and f'"worker": "{told.candidates[0].worker}"' in output


def test_there_is_a_recipe_for_each_call() -> None:
    calls = {method.name for method in pb.DESCRIPTOR.services_by_name["Debug"].methods}
    assert calls - {called(recipe) for recipe in recipes()} == set()
