"""A file of lines that is set aside when it is full. Not for two processes at once."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO


class LineFile:
    """FILE, and older ones as FILE.1, FILE.2, ...; "-" is standard output, which is never full."""

    def __init__(self, path: str, most_bytes: int, files: int):
        """Appends to what is there. Raises OSError where it cannot be opened."""
        self._path = None if path == "-" else Path(path)
        self._most_bytes = most_bytes
        self._files = files
        self._out: BinaryIO = self._path.open("ab") if self._path else sys.stdout.buffer
        self._size = self._path.stat().st_size if self._path else 0

    @property
    def is_full(self) -> bool:
        """Whether the next lines should go to a new one."""
        return self._path is not None and self._size >= self._most_bytes

    def write(self, lines: Iterable[bytes]) -> None:
        """Raises OSError."""
        data = b"".join(lines)
        self._out.write(data)
        self._out.flush()
        self._size += len(data)

    def rotate(self) -> None:
        """Sets the file aside and lets go of the oldest. Raises OSError."""
        if self._path is None:
            return
        self._out.close()
        names = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._files))]
        for newer, older in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._out, self._size = self._path.open("wb"), 0

    def close(self) -> None:
        """Standard output is not ours to close."""
        if self._path:
            self._out.close()
