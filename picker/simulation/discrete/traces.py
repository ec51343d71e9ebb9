"""Traces of requests, from files: Mooncake's JSON lines, Azure's CSV, and a CSV of our own.

| form | columns or keys | blocks |
|---|---|---|
| Mooncake | `timestamp` (ms), `input_length`, `output_length`, `hash_ids` | an id for each 512 tokens |
| Azure | `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens` | none: nothing is shared |
| ours | `at_s`, `prompt_tokens`, `output_tokens` | the same, in a column `blocks` with spaces between |

A column `session` of our own form names what a client would send to stay with one worker.
Equal ids mean equal prefixes up to there. Only full blocks can be shared, so that the last id of a prompt whose length
is no multiple of 512 is ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random

import msgspec

from picker.simulation.discrete.workload import Ask, Replay
from picker.simulation.select import BLOCK_TOKENS, Line

WARM_UP = 0.1
"""Share of a trace that fills the caches and is not measured."""
_STAMP_S = 3.0
"""Mooncake's time stamps come in steps of this; requests are spread evenly at random over it."""


class BadTrace(ValueError):
    """A file that is no trace. The message says where, and what would be one."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Which part of a trace: from share `start` to share `end` of its requests, at most `limit` of them."""

    start: float = 0.0
    end: float = 1.0
    limit: int | None = None


def read(path: Path, seed: int = 0) -> list[Ask]:
    """A trace's requests in order of time, the first at 0. The form follows from the content. Raises BadTrace."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            is_json = file.read(1) == "{"
            file.seek(0)
            asks = list(_mooncake(file, Random(seed)) if is_json else _csv(csv.DictReader(file)))
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrace(f"{path}: cannot be read: {error}") from None
    except (msgspec.MsgspecError, ValueError, KeyError, OverflowError) as error:
        raise BadTrace(f"{path}: {error}; the forms are in the head of picker/simulation/discrete/traces.py") from None
    if not asks:
        raise BadTrace(f"{path}: holds no request")
    asks.sort(key=lambda ask: ask.at)
    return [replace(ask, at=ask.at - asks[0].at) for ask in asks]


def replay(asks: Sequence[Ask], speed: float = 1.0, part: Slice | None = None) -> Replay:
    """These requests, `speed` times as fast as they came; the first tenth is not measured."""
    part = part or Slice()
    chosen = asks[int(part.start * len(asks)) : int(part.end * len(asks))][: part.limit]
    warm, begin = int(WARM_UP * len(chosen)), chosen[0].at if chosen else 0.0
    faster = [
        replace(ask, at=(ask.at - begin) / speed, measured=number >= warm, user=number)
        for number, ask in enumerate(chosen)
    ]
    return Replay(faster, BLOCK_TOKENS)


def _mooncake(lines: Iterator[str], rng: Random) -> Iterator[Ask]:
    decoder = msgspec.json.Decoder(Line)
    for text in lines:
        if text.strip():
            line = decoder.decode(text)
            at = line.timestamp / 1000 + (rng.uniform(0.0, _STAMP_S) if line.timestamp % 3000 == 0 else 0.0)
            yield _ask(at, line.input_length, line.output_length, line.hash_ids)


def _csv(rows: csv.DictReader[str]) -> Iterator[Ask]:
    columns = set(rows.fieldnames or ())
    if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
        for row in rows:
            at = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            yield _ask(at, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())
    elif {"at_s", "prompt_tokens", "output_tokens"} <= columns:
        for row in rows:
            yield _own(row)
    else:
        raise ValueError(f"columns are {', '.join(sorted(columns)) or 'missing'}")


def _own(row: Mapping[str, str]) -> Ask:
    blocks = [int(block) for block in (row.get("blocks") or "").split()]
    ask = _ask(float(row["at_s"]), int(row["prompt_tokens"]), int(row["output_tokens"]), blocks)
    return replace(ask, session=row.get("session") or "")


def _ask(at: float, prompt_tokens: int, output_tokens: int, blocks: Sequence[int]) -> Ask:
    if prompt_tokens < 0 or output_tokens < 0:
        raise ValueError("a number of tokens is negative")
    return Ask(at, max(1, prompt_tokens), max(1, output_tokens), tuple(blocks[: prompt_tokens // BLOCK_TOKENS]))
