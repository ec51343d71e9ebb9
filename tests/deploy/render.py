"""Renders what is in deploy/. `python -m tests.deploy.render` writes the kustomize base from the chart's defaults."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "picker"
BASE = ROOT / "deploy" / "kustomize" / "base" / "picker.yaml"
Manifest = dict[str, Any]


def chart(values: Manifest | None = None, *, name: str = "picker", namespace: str = "picker") -> list[Manifest]:
    """The objects of the chart. Raises HelmError."""
    with helm_python.Chart.load(CHART) as loaded:
        loaded.validate_schema(values or {})
        texts = loaded.render(values, name=name, namespace=namespace)
    return [each for path in sorted(texts) if path.endswith(".yaml") for each in documents(texts[path])]


def kustomize(folder: Path) -> list[Manifest]:
    """What `kubectl kustomize` makes of a folder."""
    command = ["kubectl", "kustomize", str(folder), "--load-restrictor", "LoadRestrictionsNone"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def documents(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each]


def base() -> str:
    """The kustomize base: the chart's defaults, without what only Helm means."""
    objects = chart({})
    for each in objects:
        each["metadata"]["labels"]["app.kubernetes.io/managed-by"] = "kustomize"
        each["metadata"].pop("namespace", None)
    head = "# Rendered from the chart by `python -m tests.deploy.render`; do not edit.\n"
    return head + yaml.safe_dump_all(_without_helm(objects), sort_keys=False, width=120)


def _without_helm(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_helm(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_helm(inner) for inner in value]
    return "kustomize" if value == "Helm" else value


if __name__ == "__main__":
    BASE.write_text(base())
