"""Who may import whom: the layering of the package, as a table, and the check of it.

A request flows extproc -> requests -> prompts -> admission -> scheduling -> fleet, and imports point the same way. What
is pure imports no clock, no chance, no loop and no network; `now` and `rng` are arguments there.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import picker

ROOT = Path(picker.__file__).parent

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    # A room, or a module of one.    What it may import beside its own room: rooms, or modules of them.
    "extproc": (
        "requests.errors",
        "requests.read",
        "requests.usage",
        "fleet.endpoints",
        "transport.calls",
        "transport.errors",
    ),
    "requests": (),
    "prompts": ("requests.model",),
    "admission": ("requests.model", "scheduling", "fleet"),
    "scheduling": ("fleet",),
    "fleet": (),
    # The view's rim: reads Redis, and compares the agents' hash with ours.
    "fleet.feed": ("redisview",),
    "fleet.members": ("redisview.reader", "redisview.records"),
    "fleet.mirror": ("redisview.records", "prompts.chain"),
    "fleet.reload": ("redisview.reader", "redisview.records"),
    "fleet.tail": ("redisview.reader", "redisview.records"),
    "fleet.peers": ("redisview.records", "redisview.share_records"),
    "fleet.sharing": ("redisview",),
    "fleet.unattended": ("redisview.records",),
    "events": ("scheduling", "fleet", "requests.model"),
    "redisview": (),
    "transport": (),
    "kubernetes": ("config_files",),
    "agent": ("redisview", "prompts", "config_files", "fleet.endpoints", "kubernetes", "settings.values"),
    "telemetry": ("prompts.reader", "transport.errors", "events", "fleet.facts", "fleet.view", "scheduling.decision"),
    "debug": (
        "telemetry.http_server",
        "events",
        "fleet",
        "extproc.actions",
        "listening",
        "placing",
        "prompts.prefix",
        "requests.errors",
    ),
    "settings": (),
    "platform": ("admission.settings", "config_files", "fleet.facts", "fleet.view", "scaling"),
    "scaling": ("fleet", "listening", "scheduling.model"),
    "migrate": (),
    "doctor": ("extproc.wire",),
    "doctor.redis": ("redisview", "prompts.chain"),
}
"""Rooms that are not here fail the test. Modules at the top compose the rooms and may import all but the simulation."""

MAY_IMPORT_ANYTHING = ("cli", "commands", "simulation", "benchmarks")

MUST_NOT_IMPORT: dict[str, tuple[str, ...]] = {
    "admission": ("grpc", "redis", "asyncio", "time", "random"),
    "scheduling": ("grpc", "redis", "asyncio", "time", "random"),
    "requests": ("grpc", "redis", "asyncio", "time", "random"),
    "prompts": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.index": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.adapters": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.breakers": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.strangers": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.inflight": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.lengths": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.reuse": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.facts": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.masks": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.turnover": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.view": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.fence": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.fences": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.members": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.mirror": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.freeze": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.fit": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.others": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.peers": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.routed": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.sharing": ("grpc",),
    "fleet.unattended": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.watch": ("grpc", "redis", "asyncio", "time", "random"),
    "fleet.feed": ("grpc",),
    "fleet.reload": ("grpc", "redis", "random"),
    "fleet.tail": ("grpc", "redis", "random"),
    "extproc.events": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc.actions": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc.conversation": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc.budget": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc.pieces": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc.wire": ("grpc", "redis", "asyncio", "time", "random"),
    "extproc": ("redis",),
    "transport": ("redis",),
    **{
        f"transport.{module}": ("grpc", "redis", "asyncio", "time", "random")
        for module in (
            "blocks",
            "calls",
            "connection",
            "floods",
            "frames",
            "headers",
            "limits",
            "liveness",
            "messages",
            "open_streams",
            "outbox",
            "streams",
            "windows",
        )
    },
    **{
        f"events.{module}": ("grpc", "redis", "asyncio", "time", "random")
        for module in ("decided", "inputs", "record", "ring", "settings", "shortened", "trace_context")
    },
    "events": ("grpc",),
    "agent": ("grpc",),
    "kubernetes": ("grpc", "redis"),
    "kubernetes.objects": ("grpc", "redis", "asyncio", "time", "random"),
    "settings": ("grpc", "redis", "asyncio", "time", "random"),
    "platform": ("grpc", "redis", "asyncio", "time", "random"),
    "scaling": ("redis", "time", "random"),
    **{
        f"scaling.{module}": ("grpc", "redis", "asyncio", "time", "random")
        for module in ("demand", "desired", "signals", "work")
    },
    "migrate": ("grpc", "redis", "asyncio", "time", "random"),
    "redisview": ("grpc",),
}
"""Libraries that a room or module does without, except for the types in them (`if TYPE_CHECKING`)."""


@dataclass(frozen=True)
class Import:
    """One imported name. `is_ours` has it relative to the package: `prompts.chain.scope`."""

    name: str
    line: int
    is_ours: bool
    is_for_types: bool


def imports_of(source: str) -> Iterator[Import]:
    tree = ast.parse(source)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        for name in _names(node):
            ours = name.partition(".")[0] == "picker"
            yield Import(name.partition(".")[2] if ours else name, node.lineno, ours, id(node) in guarded)  # type: ignore[attr-defined]


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert not node.level, f"line {node.lineno}: a relative import hides which room is meant"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def offences(module: str, source: str) -> list[str]:
    """What a module, named relative to the package, imports against the tables."""
    found = []
    for item in imports_of(source):
        if item.is_ours and not _is_allowed(module, item.name):
            found.append(f"{module}:{item.line} imports picker.{item.name}")
        elif (
            not item.is_ours and not item.is_for_types and item.name.partition(".")[0] in _row(MUST_NOT_IMPORT, module)
        ):
            found.append(f"{module}:{item.line} imports {item.name.partition('.')[0]}")
    return found


def _is_allowed(module: str, imported: str) -> bool:
    room = module.partition(".")[0]
    if room in MAY_IMPORT_ANYTHING or _is_within(imported, room):
        return True
    if "." not in module and not (ROOT / module).is_dir():
        return not _is_within(imported, "simulation")
    return any(_is_within(imported, allowed) for allowed in (*_row(MAY_IMPORT, module), "__version__"))


def _is_within(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def _row(table: dict[str, tuple[str, ...]], module: str) -> tuple[str, ...]:
    rows = [name for name in table if _is_within(module, name)]
    return table[max(rows, key=len)] if rows else ()


def modules() -> dict[str, Path]:
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in ROOT.rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__") or "__init__": path for name, path in paths.items()}


def test_imports_point_the_way_a_request_flows() -> None:
    found = [text for module, path in modules().items() for text in offences(module, path.read_text())]
    assert found == []


def test_every_room_has_a_row() -> None:
    rooms = {module.partition(".")[0] for module in modules() if (ROOT / module.partition(".")[0]).is_dir()}
    assert rooms - {*MAY_IMPORT, *MAY_IMPORT_ANYTHING} == set()


def test_every_row_names_something_that_exists() -> None:
    known = modules()
    named = {*MAY_IMPORT, *MUST_NOT_IMPORT, *(name for row in MAY_IMPORT.values() for name in row)}
    assert {name for name in named if name not in known} == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fleet.view", "from picker.scheduling.decide import decide"),
        ("fleet.view", "from picker.redisview.keys import Keys"),
        ("fleet.view", "from picker import redisview"),
        ("fleet.view", "import picker.redisview.keys as keys"),
        ("scheduling.policies.new", "def terms(situation):\n    from picker.prompts import chain"),
        ("scheduling.policies.new", "import random"),
        ("scheduling.decide", "try:\n    from time import monotonic\nexcept ImportError:\n    pass"),
        ("prompts.reader", "from picker.requests.read import read_request"),
        ("requests.read", "from picker.prompts import chain"),
        ("extproc.wire", "import grpc.aio"),
        ("extproc.service", "from picker.scheduling import decide"),
        ("server", "from picker.simulation.stack import Stack"),
        ("telemetry.log", "from picker.redisview.keys import Keys"),
    ],
)
def test_the_check_finds_a_forbidden_import(module: str, source: str) -> None:
    assert len(offences(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("scheduling.decide", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from random import Random"),
        ("scheduling.policies", "from picker.scheduling.policies import random"),
        ("fleet.feed", "import asyncio\nfrom picker.redisview.keys import Keys"),
        ("prompts.reader", "import timeit"),
        ("cli", "from picker.simulation.demo import run"),
        ("server", "from picker.redisview.keys import Keys"),
    ],
)
def test_the_check_lets_a_rightful_import_pass(module: str, source: str) -> None:
    assert offences(module, source) == []


def test_the_check_refuses_a_relative_import() -> None:
    with pytest.raises(AssertionError, match="relative"):
        offences("fleet.view", "from ..scheduling import decide")
