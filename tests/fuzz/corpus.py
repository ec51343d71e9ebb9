"""What earlier runs have found that reaches more of the code than seeds do: a file for each target, MessagePack."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent / "corpus"
_MOST_BYTES = 32_000
"""For each target: the corpus lies in the repository."""


def kept(name: str) -> list[bytes]:
    """The inputs of this target."""
    file = _FOLDER / f"{name}.msgpack"
    return msgspec.msgpack.decode(file.read_bytes(), type=list[bytes]) if file.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """These from now on, the smallest first, as many as there is room for."""
    left, chosen = _MOST_BYTES, []
    for each in sorted(set(inputs), key=lambda data: (len(data), data)):
        left -= len(each)
        if left < 0:
            break
        chosen.append(each)
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / f"{name}.msgpack").write_bytes(msgspec.msgpack.encode(chosen))
