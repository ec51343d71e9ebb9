"""What came of it all, as a table: a line for each fault, a column for each shape of Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.chaos.faults import FAULTS
from tests.chaos.run import Verdict


def runs_of(verdicts: Sequence[Verdict]) -> str:
    """How often each fault was had with each shape."""
    counts = set(Counter((verdict.shape, verdict.faults) for verdict in verdicts).values())
    least, most = min(counts), max(counts)
    if most == 1:
        return "1 run"
    return f"{least} runs" if least == most else f"{least} to {most} runs"


def table(verdicts: Sequence[Verdict]) -> str:
    """Runs of the same fault are added up; of the times, the longest counts."""
    shapes = list(dict.fromkeys(verdict.shape for verdict in verdicts))
    lines = [f"| fault | what the design says | {' | '.join(shapes)} |", "|---|---|" + "---|" * len(shapes)]
    for faults in dict.fromkeys(verdict.faults for verdict in verdicts):
        cells = [_cell([each for each in verdicts if (each.shape, each.faults) == (shape, faults)]) for shape in shapes]
        says = "; ".join(FAULTS[name].says for name in faults) if len(faults) == 1 else "both"
        lines.append(f"| {' + '.join(faults)} | {says} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(runs: Sequence[Verdict]) -> str:
    if not runs:
        return ""
    fates = [run.fates for run in runs]
    refused = sum((Counter(each.refused) for each in fates), Counter[str]())
    said = [f"{sum(each.answered for each in fates)} of {sum(each.sent for each in fates)}"]
    said += [f"{count} refused ({reason})" for reason, count in refused.items()]
    if broken := sum(each.broken for each in fates):
        said.append(f"{broken} broke off")
    said.append(f"{sum(len(each.lost) for each in fates)} lost")
    said.append(f"{max(run.recovered_s for run in runs):.1f} s")
    if wrong := sum(len(run.wrong) for run in runs):
        said.append(f"{wrong} predicted wrong")
    return ", ".join(said)
