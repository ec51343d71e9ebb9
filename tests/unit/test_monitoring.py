"""Alerts and dashboards: their metrics exist, each alert has a section in the runbook, promtool is content."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.test_metrics_reference import documented

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
ALERTS = [
    rule
    for group in yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]  # fmt: skip
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
PROMTOOL = shutil.which("promtool")
METRIC = re.compile(r"\b(?:picker|envoy|process)_[a-z_]+")


def known(name: str) -> bool:
    """Whether a name stands in the table of metrics, or is Prometheus' own or Envoy's."""
    if name.startswith(("process_", "envoy_")):
        return True
    return f"`{re.sub('_(bucket|sum|count)$', '', name)}`" in documented()


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_of_metrics_that_exist_and_has_a_runbook(rule: dict[str, Any]) -> None:
    assert [name for name in METRIC.findall(rule["expr"]) if not known(name)] == []
    assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{rule['alert'].lower()}"
    assert f"\n## {rule['alert']}\n" in (ROOT / "docs" / "runbook.md").read_text()
    assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_the_runbook_has_no_section_without_an_alert() -> None:
    sections = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in ALERTS]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_each_panel_shows_metrics_that_exist(path: Path) -> None:
    dashboard = json.loads(path.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    assert [name for each in expressions for name in METRIC.findall(each) if not known(name)] == []


@pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed")
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")])
def test_promtool_is_content(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([str(PROMTOOL), *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
