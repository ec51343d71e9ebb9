"""What was measured, in a file: so that a long benchmark can be run in parts, and its page be written again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.policies.cases import LEVELS
from picker.simulation.discrete.capacity import Mean, mean, ratio
from picker.simulation.discrete.compare import Answer


class Result(msgspec.Struct, frozen=True):
    """One policy in one case: amounts that held and output tokens a second there, by level and seed.

    `slo` is empty for the case's own objective.
    """

    case: str
    policy: str
    scale: str
    unit: str
    amounts: dict[str, list[float]]
    outputs: dict[str, list[float]]
    runs: int
    slo: str = ""

    def amount(self, level: float) -> Mean:
        """What held, over the seeds."""
        return mean(self.amounts[key(level)])

    def output(self, level: float) -> Mean:
        """Output tokens a second at that amount."""
        return mean(self.outputs[key(level)])

    def over(self, base: Result, level: float) -> Mean | None:
        """Ratio of amounts, seed by seed; None where the base holds nothing."""
        return ratio(self.amounts[key(level)], base.amounts[key(level)])


def key(level: float) -> str:
    """As JSON has it."""
    return f"{level:g}"


def of(answer: Answer, case: str, scale: str, unit: str, slo: str) -> Result:
    """An answer as it is kept."""
    held = {key(level): answer.held[level] for level in LEVELS}
    amounts = {level: [each.amount for each in row] for level, row in held.items()}
    outputs = {
        level: [each.figures.output_rate if each.figures else 0.0 for each in row] for level, row in held.items()
    }
    return Result(case, answer.policy, scale, unit, amounts, outputs, answer.runs, slo)


def read(path: Path) -> list[Result]:
    """All that are there; none without a file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Result]) if path.exists() else []


def write(path: Path, results: list[Result]) -> None:
    """One line for each."""
    lines = ",\n".join(msgspec.json.encode(result).decode() for result in results)
    path.write_text(f"[\n{lines}\n]\n")
