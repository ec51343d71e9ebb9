"""`picker replay --simulate`: a recorded day as it was, as its own settings play it, and as others do, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from picker.config import Config
    from picker.replaying import Totals
    from picker.simulation.discrete.outcome import Request

_NOTE = (
    "The first column is what happened to the requests whose end was written. The others are simulated, on workers as "
    "fast as worker_model says: compare them with each other, and the first two to see how far that is from yours."
)


def show_played(files: Sequence[Path], other: Config | None, as_json: bool) -> None:
    """Plays the day by its own settings and by others, and prints all. Raises BadRecording."""
    from picker.simulation.discrete.recorded import play, read

    day = read(files)
    settings = {"simulated": day.config, **({"with --policy": other} if other else {})}
    found: dict[str, Mapping[str, Any]] = {"recorded": _told(day.recorded, ())}
    for name, config in settings.items():
        played = play(day, config)
        found[name] = _told(played.predicted, played.outcome.requests)
    if as_json:
        typer.echo(msgspec.json.encode(found).decode())
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{len(day.asks)} requests, {len(day.workers)} workers\n")
    console.print(_table(found))
    console.print(f"\n{_NOTE}", style="dim")


def _told(totals: Totals, requests: Sequence[Request]) -> dict[str, Any]:
    """`ttft` is measured where there are no simulated `requests`, else predicted by the decision."""
    served = [request for request in requests if request.ttft_s < float("inf")]
    told: dict[str, Any] = {
        "routed": totals.routed,
        "refused": sum(totals.refused.values()),
        "reasons": dict(totals.refused),
        "predicted hit tokens": totals.hit_tokens,
        "predicted hit share": share(totals.hit_tokens, totals.prompt_tokens),
    }
    if not requests:
        return {**told, **_times("ttft", totals.ttft_s)}
    cached, prompts = (sum(getattr(each, name) for each in served) for name in ("cached_tokens", "prompt_tokens"))
    return {
        **told,
        "failed": len(requests) - len(served) - told["refused"],
        "hit tokens": cached,
        "hit share": share(cached, prompts),
        **_times("predicted ttft", totals.ttft_s),
        **_times("ttft", [request.ttft_s for request in served]),
        **_times("whole answer", [request.ttft_s + request.decode_s for request in served]),
    }


def _table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for told in found.values() for row in told):
        if row != "reasons":
            table.add_row(row, *(str(told.get(row, "")) for told in found.values()))
    for reason in sorted({reason for told in found.values() for reason in told["reasons"]}):
        table.add_row(f"  {reason}", *(str(told["reasons"].get(reason, 0)) for told in found.values()))
    return table


def _times(name: str, seconds: Sequence[float]) -> dict[str, float]:
    return dict(zip((f"{name} mean s", f"{name} p50 s", f"{name} p95 s"), spread(seconds), strict=True))


def spread(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Mean, median and 95th percentile; 0 where there are none."""
    ordered = sorted(seconds)
    return round(sum(ordered) / max(1, len(ordered)), 4), _quantile(ordered, 0.5), _quantile(ordered, 0.95)


def _quantile(ordered: Sequence[float], rank: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(rank * len(ordered)))], 4) if ordered else 0.0


def share(part: int, whole: int) -> float:
    """Of a whole that may be 0."""
    return round(part / max(1, whole), 4)
