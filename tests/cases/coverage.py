"""Which field cases have a test: what people reported of endpoint pickers, gateways and engines, each by its id.

A test covers a case whose id is in its name (`test_pr_01_...`, also several), or in the id of one of its parameters
("pr_01 ..."). `python -m tests.cases.coverage` lists the cases that no test covers.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NAME = re.compile(r"def (test_\w+)\(")
_IN_NAME = re.compile(r"(?<![a-z])([a-z]{2})_(\d\d)(?!\d)")
_IN_PARAMETER = re.compile(r"[\"']([A-Za-z]{2}[-_]\d\d)(?!\d)")


def known() -> list[str]:
    """All cases, in order."""
    return (Path(__file__).parent / "field_ids.txt").read_text().split()


def covered(source: str) -> set[str]:
    """The cases that a test module covers."""
    names = {f"{area.upper()}-{number}" for name in _NAME.findall(source) for area, number in _IN_NAME.findall(name)}
    return names | {each.upper().replace("_", "-") for each in _IN_PARAMETER.findall(source)}


def uncovered() -> list[str]:
    """The cases without a test."""
    found = set().union(*(covered(path.read_text()) for path in ROOT.rglob("*.py")))
    return [case for case in known() if case not in found]


if __name__ == "__main__":
    print(*uncovered(), sep="\n")
