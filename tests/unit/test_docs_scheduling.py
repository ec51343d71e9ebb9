"""What docs/scheduling.md says is so."""

import re
from pathlib import Path

import pytest

from picker.config import Config
from picker.config_files import load
from picker.scheduling.decision import STATUS, Reason
from picker.scheduling.eligibility import PREFERENCES, RULES

PAGE = (Path(__file__).parents[2] / "docs/scheduling.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_its_examples_are_configurations(example: str, tmp_path: Path) -> None:
    (tmp_path / "picker.yaml").write_text(example)
    assert load(tmp_path / "picker.yaml", Config) != Config()


def test_its_table_has_the_rules_in_their_order_with_their_refusals() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|.*\| (\d+) `([\w-]+)` \|$", PAGE, re.MULTILINE)
    assert rows == [(name, str(STATUS[reason]), reason.value) for reason, name, _ in RULES]
    assert all(f"`{name}`" in PAGE for name, _ in PREFERENCES)
    assert {reason for _, _, reason in rows} | {Reason.NO_WORKERS.value} <= set(Reason)
