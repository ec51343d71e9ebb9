"""What comes of reading another router's configuration."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import Any

import structlog
import yaml

log = structlog.get_logger()


@dataclass(slots=True)
class Imported:
    """Our settings, as a tree, and what an operator should know about each thing that differs."""

    source: str
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    workers: list[str] = field(default_factory=list)
    """URLs of workers that were named; with us they are the agent's."""

    def set(self, path: str, value: object) -> None:
        """Gives a setting, such as `limits.max_streams`, this value."""
        *groups, name = path.split(".")
        inner = self.settings
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value

    def note(self, where: str, text: str) -> None:
        """Something differs: `where` in their configuration, and what it means here."""
        self.notes.append(f"{where}: {text}")

    def log(self) -> None:
        """Tells of the notes in the log."""
        for note in self.notes:
            log.info("option_differs", note=note)

    def text(self) -> str:
        """The file picker.yaml, with the notes at its head."""
        head = [f"Imported from {self.source}. What differs:", *(f"- {note}" for note in self._all_notes())]
        comment = "".join(_comment(line) for line in head)
        return comment + (yaml.safe_dump(self.settings, sort_keys=False) if self.settings else "{}\n")

    def _all_notes(self) -> list[str]:
        if not self.workers:
            return self.notes
        options = " ".join(f"--worker {url}" for url in self.workers)
        return [*self.notes, f"workers: the agent's business; run: picker agent {options}"]


def _comment(line: str) -> str:
    # Nothing from outside may end the comment.
    line = " ".join(line.split())
    wrapped = textwrap.wrap(line, 116, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "".join(f"# {part}\n" for part in wrapped)
