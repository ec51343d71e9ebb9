"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from picker.simulation.discrete.capacity import ratio
from picker.simulation.discrete.compare import Answer
from picker.simulation.discrete.outcome import Figures


def figures_table(title: str, figures: Mapping[str, Figures]) -> Table:
    """One column for each run."""
    table = Table(title=title)
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right")
    for label, text in _LINES:
        table.add_row(label, *(text(each) for each in figures.values()))
    for kind in sorted({kind for each in figures.values() for kind in each.attained_by_kind}):
        table.add_row(f"  of {kind}", *(f"{each.attained_by_kind.get(kind, 0):.1%}" for each in figures.values()))
    return table


_LINES: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("requests", lambda f: f"{f.requests:,}"),
    ("failures", lambda f: f"{f.failures:,}"),
    ("within the objective", lambda f: f"{f.attained:.2%}"),
    ("goodput, tokens/s", lambda f: f"{f.goodput:,.0f}"),
    ("output, tokens/s", lambda f: f"{f.output_rate:,.0f}"),
    ("requests/s", lambda f: f"{f.request_rate:.2f}"),
    ("prompt tokens from cache", lambda f: f"{f.hit_ratio:.1%}"),
    ("TTFT p50 / p90 / p99", lambda f: f"{f.ttft_p50_s:.2f} / {f.ttft_p90_s:.2f} / {f.ttft_p99_s:.2f} s"),
    ("TPOT p50 / p99", lambda f: f"{1000 * f.tpot_p50_s:.0f} / {1000 * f.tpot_p99_s:.0f} ms"),
    ("whole answer p99", lambda f: f"{f.e2e_p99_s:.1f} s"),
)


def answers_table(title: str, unit: str, answers: Sequence[Answer]) -> Table:
    """One row for each policy, the first one the base of the ratios; an amount, its throughput and both ratios."""
    table = Table(title=title, caption="± is the half width of the 95 % interval over the seeds")
    table.add_column("policy")
    for level in answers[0].held:
        for heading in (f"{unit} at {level:.0%}", "output tokens/s", "amount ratio", "output ratio"):
            table.add_column(heading, justify="right")
    for answer in answers:
        cells = [cell for level in answer.held for cell in _cells(answer, answers[0], level)]
        table.add_row(answer.policy, *cells)
    return table


def _cells(answer: Answer, base: Answer, level: float) -> tuple[str, str, str, str]:
    amounts = ratio(answer.amounts(level), base.amounts(level))
    rate, base_rate = answer.output_rate(level), base.output_rate(level)
    return (
        str(answer.amount(level)),
        f"{rate.value:,.0f}" if rate else "-",
        str(amounts) if amounts else "-",
        f"{rate.value / base_rate.value:.2f}" if rate and base_rate else "-",
    )
