"""Everything that reads bytes from outside, fuzzed for a while: `python -m tests.fuzz --help`.

Guided by coverage (atheris); without it, by Hypothesis.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.common.doc import put
from tests.fuzz.corpus import keep, kept
from tests.fuzz.targets import TARGETS, Target

_EXECUTED = re.compile(r"number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(r"cov: (\d+)")
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a target. `covered`: edges of our code, 0 where nobody counted; `defect`: "" or what was said."""

    name: str
    executed: int
    covered: int
    defect: str


def main(
    minutes: Annotated[float, typer.Option(help="For all targets together.")] = 10.0,
    target: Annotated[list[str] | None, typer.Option(help="By name; all by default.")] = None,
    write: Annotated[Path | None, typer.Option(help="Put the table into this page.", dir_okay=False)] = None,
    keeps: Annotated[bool, typer.Option("--keep", help="What covers more goes into tests/fuzz/corpus.")] = False,
) -> None:
    """Feeds random bytes to each target for its share of the time."""
    names = target or list(TARGETS)
    seconds = max(1, round(minutes * 60 / len(names)))
    has_atheris = importlib.util.find_spec("atheris") is not None
    found = []
    with tempfile.TemporaryDirectory(prefix="picker-fuzz-") as folder:
        for name in names:
            corpus = Path(folder) / name
            one = _guided(name, seconds, corpus) if has_atheris else _random(name, TARGETS[name], seconds)
            if keeps and has_atheris:
                keep(name, (file.read_bytes() for file in corpus.iterdir()))
            typer.echo(f"{one.name}: {one.executed} inputs, {one.covered} edges {one.defect}")
            found.append(one)
    page = _page(found, minutes, "atheris" if has_atheris else "Hypothesis")
    if write:
        put(write, "tests.fuzz", f"{page}\n")
    raise typer.Exit(any(one.defect for one in found))


def _guided(name: str, seconds: int, corpus: Path) -> Found:
    corpus.mkdir()
    for number, data in enumerate((*TARGETS[name].seeds, *kept(name))):
        (corpus / f"seed-{number}").write_bytes(data)
    command = [sys.executable, "-m", "tests.fuzz.one", name, str(corpus), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    said = done.stdout + done.stderr
    executed, covered = _EXECUTED.search(said), _COVERED.findall(said)
    defect = "" if done.returncode == 0 else said[-3000:]
    return Found(name, int(executed[1]) if executed else 0, int(covered[-1]) if covered else 0, defect)


def _random(name: str, target: Target, seconds: int) -> Found:
    executed, over_at = 0, time.monotonic() + seconds
    seeds = st.sampled_from(target.seeds)
    damaged = st.builds(
        lambda seed, at, piece: seed[:at] + piece + seed[at + 1 :], seeds, st.integers(0, 400), st.binary(max_size=4)
    )

    @settings(max_examples=_AT_ONCE, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seeds | damaged | st.binary(max_size=4096))
    def run(data: bytes) -> None:
        target.run(data)

    try:
        while time.monotonic() < over_at:
            run()
            executed += _AT_ONCE
    except Exception as error:
        return Found(name, executed, 0, repr(error))
    return Found(name, executed, 0, "")


def _page(found: list[Found], minutes: float, how: str) -> str:
    rows = [f"| {one.name} | {one.executed} | {one.covered} | {'found' if one.defect else 'none'} |" for one in found]
    head = f"{minutes:g} minutes, {how}."
    return "\n".join([head, "", "| target | inputs | edges covered | defects |", "|---|---:|---:|---|", *rows])


if __name__ == "__main__":
    typer.run(main)
