"""Figures in a page of the documentation: a command writes them between its marks and leaves the rest alone."""

from __future__ import annotations

from pathlib import Path


def put(page: Path, command: str, text: str) -> None:
    """Replaces what this command has written there before. Raises ValueError where the page has no marks of its."""
    begin, end = f"<!-- written by {command} -->\n", f"<!-- end of {command} -->\n"
    before, mark, rest = page.read_text().partition(begin)
    _, closing, after = rest.partition(end)
    if not mark or not closing:
        raise ValueError(f"{page}: has no lines {begin.strip()} and {end.strip()} to write between")
    page.write_text(f"{before}{begin}{text}{end}{after}")
