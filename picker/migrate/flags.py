"""Command lines of other routers: words into flags, and a table of what each flag means here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from picker.migrate.imported import Imported

_FLAG = re.compile(r"--?[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag with what follows it. `name` is without dashes in front and with dashes inside."""

    name: str
    values: tuple[str, ...]

    @property
    def value(self) -> str:
        """Its only or first value; "true" for a flag alone."""
        return self.values[0] if self.values else "true"

    @property
    def is_on(self) -> bool:
        """Of a switch."""
        return self.value.lower() not in ("false", "0", "no")


Meaning = Callable[[Imported, Flag], None]
Table = Mapping[str, Meaning]


def flags(words: Sequence[str]) -> Iterator[Flag]:
    """The flags in a command line; what stands in front of the first is skipped."""
    name, values = "", list[str]()
    for word in words:
        key, equals, value = word.partition("=")
        if not _FLAG.fullmatch(key):
            values.append(word)
            continue
        if name:
            yield Flag(name, tuple(values))
        name, values = key.lstrip("-").replace("_", "-"), [value] if equals else []
    if name:
        yield Flag(name, tuple(values))


def apply(table: Table, words: Sequence[str], into: Imported) -> None:
    """Does for each flag what the table says; one that it does not know becomes a note."""
    for flag in flags(words):
        meaning = table.get(flag.name)
        if meaning:
            meaning(into, flag)
        else:
            into.note(f"--{flag.name}", "not known here, left out")


def sets(path: str, convert: Callable[[str], object] = str, note: str = "") -> Meaning:
    """The flag is this setting of ours. A value that cannot be converted becomes a note."""

    def meaning(into: Imported, flag: Flag) -> None:
        try:
            into.set(path, convert(flag.value))
        except ValueError:
            into.note(f"--{flag.name}", f"{flag.value!r} is no value for {path}; left out")
            return
        if note:
            into.note(f"--{flag.name}", note)

    return meaning


def says(text: str) -> Meaning:
    """The flag has no counterpart, and this is what to know about it."""
    return lambda into, flag: into.note(f"--{flag.name}", text)


def ignored(into: Imported, flag: Flag) -> None:
    """The flag means nothing that could differ."""


def port(path: str) -> Meaning:
    """The flag is the port of this address of ours, on all interfaces."""
    return sets(path, lambda value: f"0.0.0.0:{int(value)}")
