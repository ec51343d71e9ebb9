"""Whether what was sampled has stayed flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.soak.probe import Sample

_SLACK = {"memory, MB": 8.0, "descriptors": 12.0, "threads": 3.0, "metric series": 12.0, "keys": 6.0, "streams": 50.0}
_SHARE = 0.05
NOT_JUDGED = "Redis: memory, MB"
"""Grows until the event stream has its 100,000 entries."""


@dataclass(frozen=True, slots=True)
class Line:
    """Of one thing that was measured: medians of the second and of the last third, and the most at any time."""

    name: str
    before: float
    after: float
    most: float

    @property
    def is_flat(self) -> bool:
        """Whether the last third is no more than a twentieth, or the slack of its kind, above the second."""
        slack = _SLACK[self.name.partition(": ")[2]]
        return self.after - self.before <= max(slack, _SHARE * self.before)


def judged(samples: Sequence[Sample]) -> list[Line]:
    """What was measured, line by line; the first third warms up."""
    third = len(samples) // 3
    return [
        Line(
            name,
            median(sample[name] for sample in samples[third : 2 * third]),
            median(sample[name] for sample in samples[2 * third :]),
            max(sample[name] for sample in samples),
        )
        for name in samples[0]
    ]


def table(lines: Sequence[Line]) -> str:
    """For a page."""
    rows = [f"| {line.name} | {line.before:.1f} | {line.after:.1f} | {line.most:.1f} |" for line in lines]
    return "\n".join(["| what | second third | last third | most |", "|---|---:|---:|---:|", *rows])
