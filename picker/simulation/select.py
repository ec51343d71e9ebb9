"""Takes a small sample out of a big trace: whole conversations, spread over it, compressed in time.

    python -m picker.simulation.select conversation_trace.jsonl > picker/simulation/data/conversations.jsonl

Traces are in Mooncake's form: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` (tokens)
and `hash_ids`, one for each 512 tokens of the prompt, the last of them perhaps partly filled; equal ids mean equal
prefixes up to there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

BLOCK_TOKENS = 512
REQUESTS = 270
SPAN_MS = 45_000
MIN_TURNS = 3
MAX_TURNS = 12
MAX_INPUT = 32_768
"""Longer prompts would keep a demo's worker busy for half a minute."""


class Line(msgspec.Struct, frozen=True):
    """One request of a trace."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]


def conversations(lines: Sequence[Line]) -> list[list[Line]]:
    """Requests by conversation: one that holds all the whole blocks of an earlier one continues it.

    The first block does not count: all prompts of the trace begin with it.
    """
    found: list[list[Line]] = []
    by_last_block: dict[int, list[Line]] = {}
    for line in lines:
        turns = next((by_last_block[block] for block in reversed(line.hash_ids[1:]) if block in by_last_block), None)
        if turns is None:
            turns = []
            found.append(turns)
        turns.append(line)
        whole = line.input_length // BLOCK_TOKENS
        if whole > 1:
            by_last_block[line.hash_ids[whole - 1]] = turns
    return found


def sample(found: Sequence[list[Line]], requests: int = REQUESTS) -> list[Line]:
    """About so many requests of conversations with some turns, every nth of them, in order of time."""
    fit = [turns for turns in found if MIN_TURNS <= len(turns) <= MAX_TURNS and _longest(turns) <= MAX_INPUT]
    stride = max(1, round(sum(map(len, fit)) / requests))
    return sorted((line for turns in fit[::stride] for line in turns), key=lambda line: line.timestamp)


def compress(lines: Sequence[Line], span_ms: int = SPAN_MS) -> list[Line]:
    """The same requests within `span_ms`, block ids renumbered from 0."""
    first, last = lines[0].timestamp, lines[-1].timestamp
    numbers: dict[int, int] = {}
    return [
        msgspec.structs.replace(
            line,
            timestamp=(line.timestamp - first) * span_ms // max(1, last - first),
            hash_ids=[numbers.setdefault(block, len(numbers)) for block in line.hash_ids],
        )
        for line in lines
    ]


def read(path: Path) -> list[Line]:
    """A trace. Raises OSError, msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(Line)
    return [decoder.decode(line) for line in path.read_bytes().splitlines()]


def _longest(turns: Iterable[Line]) -> int:
    return max(line.input_length for line in turns)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m picker.simulation.select", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("trace", type=Path, help="conversation_trace.jsonl of Mooncake")
    for line in compress(sample(conversations(read(parser.parse_args().trace)))):
        sys.stdout.write(msgspec.json.encode(line).decode() + "\n")


if __name__ == "__main__":
    main()
