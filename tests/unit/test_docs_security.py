"""Pages that name tests: the tests exist, and no line of a table of threats or modes is without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_metrics_reference import documented, server

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def tables(text: str) -> Iterator[list[str]]:
    """Of each table its lines, the head first."""
    for found in re.finditer(r"(?m)(?:^\|.*\n)+", text):
        yield found[0].splitlines()


def lines_with_tests(page: str) -> list[str]:
    """The lines of the tables that have a column of tests."""
    text = (ROOT / "docs" / page).read_text()
    return [line for head, _, *lines in tables(text) if head.endswith("| tests |") for line in lines]


@pytest.mark.parametrize(("page", "least"), [("security.md", 35), ("reliability.md", 30)])
def test_each_line_names_tests_that_exist(page: str, least: int) -> None:
    lines = lines_with_tests(page)
    assert len(lines) >= least
    for line in lines:
        named = NAMED.findall(line.rpartition(" | ")[2])
        assert named, f"without a test: {line}"
        for file, name in named:
            source = (ROOT / file).read_text()
            assert re.search(rf"^ *(?:async )?def {name}\(", source, re.MULTILINE), f"{file} has no {name}"


async def test_each_mode_that_a_picker_tells_of_is_in_the_table_and_each_metric_there_exists() -> None:
    told = "\n".join(lines_with_tests("reliability.md"))
    assert set(re.findall(r'mode="(\w+)"', told)) == set(server()._degraded())
    assert set(re.findall(r"`(picker_[a-z_]+)", told)) <= set(re.findall(r"`(picker_[a-z_]+)", documented()))
    alerts = (ROOT / "deploy" / "monitoring" / "alerts.yaml").read_text()
    assert {name for name in re.findall(r"\*\*(\w+)\*\*", told) if f"alert: {name}\n" not in alerts} == set()


def test_a_line_without_a_test_or_with_one_that_is_gone_is_found() -> None:
    assert NAMED.findall("| a | `tests/unit/x.py::test_y` |") == [("tests/unit/x.py", "test_y")]
    assert NAMED.findall("| a | tests/unit/x.py |") == []
    assert [head for head, *_ in tables("x\n| a | tests |\n|---|---|\n| b | c |\n\n| d |\n")] == [
        "| a | tests |",
        "| d |",
    ]
