"""The table of docs/metrics.md, from the metrics themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from picker.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Row:
    """One metric. `labels` are those of its samples, or those that it will have."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def rows(metrics: Metrics) -> Iterator[Row]:
    """All there are, by name."""
    declared = {
        name: tuple(getattr(collector, "_labelnames", ()))
        for collector, names in metrics.registry._collector_to_names.items()
        for name in names
    }
    found = text_string_to_metric_families(metrics.exposition("")[0].decode())
    for family in sorted(found, key=lambda family: family.name):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        seen = {label for sample in family.samples for label in sample.labels} - {"le"}
        yield Row(name, family.type, declared.get(family.name) or tuple(sorted(seen)), family.documentation)


def table(lines: Iterable[Row]) -> str:
    """Markdown."""
    body = (
        f"| `{row.name}` | {row.kind} | {', '.join(f'`{each}`' for each in row.labels)} | {row.text} |" for row in lines
    )
    return "\n".join(("| metric | type | labels | meaning |", "|---|---|---|---|", *body))


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
