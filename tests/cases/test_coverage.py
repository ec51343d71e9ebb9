"""Every field case has a test, or the docs say why not."""

from __future__ import annotations

from pathlib import Path

from tests.cases.coverage import covered, known, uncovered

DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_each_case_has_a_test_or_is_explained() -> None:
    explained = DOCS.read_text()
    assert len(known()) == len(set(known())) > 150
    assert [case for case in uncovered() if f"`{case}`" not in explained] == []


def test_ids_are_read_from_names_and_parameters_and_nothing_else() -> None:
    source = """
    async def test_pr_02_pr_05_every_mode(x): ...
    def helper_he_01(): ...
    CASES = {"PA-03 a list": 1, "n": "x PA-04"}  # RE-01
    """
    assert covered(source) == {"PR-02", "PR-05", "PA-03"}
