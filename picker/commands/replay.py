"""`picker replay`: makes the decisions of a recording again, with other settings, and tells what would have changed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from picker.commands.client import fail
from picker.commands.played import share, show_played, spread
from picker.replaying import Again, Totals


def replay(
    files: Annotated[list[Path], typer.Argument(help="Recordings (`events.replayable`), the oldest first.")],
    policy: Annotated[
        Path | None, typer.Option(help="A picker's configuration with other settings.", dir_okay=False)
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Play the day again on simulated workers: placements have effects."),
    ] = False,
    changed: Annotated[int, typer.Option(help="Print so many of the decisions that change.", min=0)] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Decide a recording again, as it was decided and by other settings; tell the difference.

    Each decision is made on what it saw then; with --simulate on what would have come of the decisions before it.
    Exit code 1 where the settings of the recording do not give what was recorded: then another version made it.
    """
    from picker.config import Config
    from picker.config_files import ConfigError, load
    from picker.replaying import BadRecording, replay
    from picker.scheduling.policies import UnknownPolicy

    try:
        other = load(policy, Config) if policy else None
        if simulate:
            return show_played(files, other, json)
        told = _Comparison(changed)
        told.take(replay(files, other))
    except (BadRecording, ConfigError, UnknownPolicy) as error:
        fail(str(error))
    if json:
        typer.echo(msgspec.json.encode(told.as_dict()).decode())
    else:
        told.print(Console(highlight=False, soft_wrap=True), policy is not None)
    if told.not_reproduced:
        raise typer.Exit(1)


class _Comparison:
    def __init__(self, most_examples: int):
        self.decisions = self.not_reproduced = self.changed = 0
        self.examples: list[Again] = []
        self.before, self.after = Totals(), Totals()
        self._most_examples = most_examples

    def take(self, decisions: Iterable[Again]) -> None:
        for each in decisions:
            self.decisions += 1
            self.not_reproduced += not each.is_reproduced
            self.before.add(each.before, each.prompt_tokens)
            self.after.add(each.after, each.prompt_tokens)
            if each.before.endpoints[:1] != each.after.endpoints[:1]:
                self.changed += 1
                if len(self.examples) < self._most_examples:
                    self.examples.append(each)

    def as_dict(self) -> dict[str, Any]:
        return {
            "decisions": self.decisions,
            "not_reproduced": self.not_reproduced,
            "changed": self.changed,
            "before": _figures(self.before),
            "after": _figures(self.after),
            "examples": [{"id": e.id, "before": e.before.endpoints, "after": e.after.endpoints} for e in self.examples],
        }

    def print(self, console: Console, compares: bool) -> None:
        again = self.decisions - self.not_reproduced
        console.print(f"{again} of {self.decisions} decisions come out as they were recorded")
        if self.not_reproduced:
            console.print("The others were made by another version of Picker, or with a policy that is not installed.")
        if not compares:
            return
        console.print(f"{self.changed} go to another worker, are refused, or are no longer refused\n")
        console.print(self._table())
        for each in self.examples:
            names = (" ".join(verdict.endpoints[:1]) or verdict.reason for verdict in (each.before, each.after))
            console.print(f"{each.id}: {' -> '.join(names)}")

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        table.add_column("")
        for name in ("recorded", "with --policy"):
            table.add_column(name, justify="right")
        before, after = _figures(self.before), _figures(self.after)
        for name in ("routed", "refused", "hit_tokens", "hit_share", "ttft_mean_s", "ttft_p50_s", "ttft_p95_s"):
            table.add_row(name.replace("_", " "), str(before[name]), str(after[name]))
        for reason in sorted({*self.before.refused, *self.after.refused}):
            table.add_row(f"  {reason}", str(self.before.refused[reason]), str(self.after.refused[reason]))
        return table


def _figures(totals: Totals) -> dict[str, Any]:
    mean_s, median_s, p95_s = spread(totals.ttft_s)
    return {
        "routed": totals.routed,
        "refused": sum(totals.refused.values()),
        "reasons": dict(totals.refused),
        "hit_tokens": totals.hit_tokens,
        "hit_share": share(totals.hit_tokens, totals.prompt_tokens),
        "ttft_mean_s": mean_s,
        "ttft_p50_s": median_s,
        "ttft_p95_s": p95_s,
    }
