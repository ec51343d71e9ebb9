"""Does Picker's signal scale better than utilisation? `python -m benchmarks.scaling --mooncake FILE --azure FILE`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.common.doc import put
from benchmarks.scaling.run import Result, Scene, run, scalers, scene

TARGETS: dict[str, Sequence[float]] = {
    "busy": (0.9, 0.8, 0.7, 0.6),
    "requests": (20, 8, 4),
    "predictive": (0.8, 0.7, 0.6),
}
QUICK: dict[str, Sequence[float]] = {"busy": (0.8,), "requests": (), "predictive": (0.7,)}


def main(
    mooncake: Annotated[Path | None, typer.Option(help="conversation_trace.jsonl of Mooncake (FAST '25).")] = None,
    azure: Annotated[Path | None, typer.Option(help="AzureLLMInferenceTrace_conv.csv of 2023.")] = None,
    quick: Annotated[bool, typer.Option(help="Two scalers, on the sample that Picker carries.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file as well.")] = None,
    doc: Annotated[Path | None, typer.Option(help="Put the table into this page, between its marks.")] = None,
) -> None:
    """The same requests with each scaler; a row each."""
    results: list[Result] = []
    for each in _scenes(mooncake, azure, quick):
        for name, scaler in scalers(each, QUICK if quick else TARGETS).items():
            results.append(run(each, name, scaler))
            typer.echo(f"{each.name}: {name}: {results[-1].attained:.1%} with {results[-1].gpu_hours:.2f} GPU-hours")
    Console().print(_table(results))
    if json:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    if doc:
        put(doc, "benchmarks.scaling", _markdown(results))


def _scenes(mooncake: Path | None, azure: Path | None, quick: bool) -> list[Scene]:
    found = []
    if quick:
        sample = Path(__file__).parents[2] / "picker" / "simulation" / "data" / "conversations.jsonl"
        found.append(scene("sample", sample, "32b", 0.5))
    if mooncake:
        found.append(scene("Mooncake conversations", mooncake, "32b", 2.5, 4500))
    if azure:
        found.append(scene("Azure conversations", azure, "70b", 20.0, 18_000, 900.0))
    return found


def _table(results: Sequence[Result]) -> Table:
    table = Table(title="A fleet that grows and shrinks")
    for column in ("trace", "scaler", "within the objective", "GPU-hours", "most workers", "TTFT p99", "took"):
        table.add_column(column, justify="left" if column in ("trace", "scaler") else "right")
    for each in results:
        table.add_row(each.scene, each.scaler, *_cells(each), f"{each.took_s:.0f} s")
    return table


def _cells(each: Result) -> tuple[str, ...]:
    return f"{each.attained:.1%}", f"{each.gpu_hours:.2f}", f"{each.most}", f"{each.ttft_p99_s:.1f} s"


def _markdown(results: Sequence[Result]) -> str:
    rows = [f"| {each.scene} | {each.scaler} | {' | '.join(_cells(each))} |\n" for each in results]
    head = (
        "| trace | scaler | within the objective | GPU-hours | most workers | TTFT p99 |\n|---|---|---|---|---|---|\n"
    )
    return head + "".join(rows)


if __name__ == "__main__":
    typer.run(main)
