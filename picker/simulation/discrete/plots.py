"""Pictures, as PNG or SVG, or as one HTML file that needs nothing else. Drawn by matplotlib (extra `simulate`)."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from picker.simulation.discrete.compare import Answer
from picker.simulation.discrete.outcome import FAILED, Outcome

SUFFIXES = (".png", ".svg", ".html")
_MOST_WORKERS = 64


class BadPlot(ValueError):
    """A file that cannot be written. The message says why."""


def draw_runs(outcomes: Mapping[str, Outcome], title: str) -> Figure:
    """Distributions of TTFT and TPOT of all runs, and below them the load of each worker over time."""
    rows = 1 + len(outcomes)
    figure = Figure(figsize=(11, 3.6 * rows), layout="constrained")
    figure.suptitle(title)
    left, right = figure.add_subplot(rows, 2, 1), figure.add_subplot(rows, 2, 2)
    for name, outcome in outcomes.items():
        served = [request for request in outcome.measured() if request.ttft_s < FAILED]
        _distribution(left, name, [request.ttft_s for request in served])
        _distribution(right, name, [1000 * r.decode_s / max(r.output_tokens - 1, 1) for r in served])
    _label(left, "time to first token, s", "share of requests")
    _label(right, "time per output token, ms", "share of requests")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.legend()
    for row, (name, outcome) in enumerate(outcomes.items(), start=2):
        _loads(figure.add_subplot(rows, 1, row), name, outcome)
    return figure


def draw_answers(answers: Sequence[Answer], unit: str, title: str) -> Figure:
    """Attainment against load, and what each policy holds at each level."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    figure.suptitle(title)
    curves, bars = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for answer in answers:
        curves.plot(*zip(*answer.curve, strict=True), marker=".", label=answer.policy)
    for level in answers[0].held:
        curves.axhline(level, color="grey", linewidth=0.5)
    _label(curves, f"load, {unit}", "share of requests within the objective")
    curves.legend(fontsize="small")
    _bars(bars, answers, unit)
    return figure


def check(path: Path) -> None:
    """Whether it can be drawn to. Raises BadPlot."""
    if path.suffix not in SUFFIXES:
        raise BadPlot(f"--plot {path}: the name must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise BadPlot(f"--plot {path}: there is no folder {path.parent}; make it, or name another")


def save(figure: Figure, path: Path) -> None:
    """The form follows from the file's name. Raises BadPlot."""
    try:
        if path.suffix == ".html":
            path.write_text(_page(figure))
        else:
            figure.savefig(path, dpi=120)
    except OSError as error:
        raise BadPlot(f"--plot {path}: cannot be written: {error.strerror}") from None


def _distribution(axes: Axes, name: str, values: Sequence[float]) -> None:
    ordered = np.sort(values)
    axes.plot(ordered, np.arange(1, len(ordered) + 1) / max(1, len(ordered)), label=name)


def _loads(axes: Axes, name: str, outcome: Outcome) -> None:
    times = [load.at for load in outcome.load]
    loads = np.array([np.add(load.running, load.waiting) for load in outcome.load])[:, :_MOST_WORKERS]
    axes.plot(times, loads, linewidth=0.7)
    _label(axes, "time, s", f"requests on each worker\n{name}")


def _bars(axes: Axes, answers: Sequence[Answer], unit: str) -> None:
    levels = list(answers[0].held)
    height = 0.8 / len(levels)
    for number, level in enumerate(levels):
        means = [answer.amount(level) for answer in answers]
        axes.barh(
            np.arange(len(answers)) + number * height,
            [mean.value for mean in means],
            height,
            xerr=[mean.half_width or 0.0 for mean in means],
            label=f"{level:.0%}",
        )
    axes.set_yticks(np.arange(len(answers)) + 0.4 - height / 2, [answer.policy for answer in answers])
    axes.invert_yaxis()
    _label(axes, unit, "")
    axes.legend(title="within the objective")


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.3)


def _page(figure: Figure) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    title = html.escape(figure.get_suptitle())
    picture = base64.b64encode(data.getvalue()).decode()
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title>\n'
        f'<img alt="{title}" style="max-width: 100%" src="data:image/png;base64,{picture}">\n</html>\n'
    )
