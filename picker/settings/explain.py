"""The words of `picker config check`: every effective value, where it comes from, what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from picker.settings.reference import settings_of
from picker.settings.values import flat, lines, shown


def explained(config: msgspec.Struct, text: str, name: str, *, only_set: bool = False) -> Iterator[str]:
    """Lines for people about a configuration that was read from `text`, the content of the file `name`."""
    values, places = flat(config), lines(text)
    meanings = {setting.path: setting.meaning for setting in settings_of(type(config))}
    is_set = {path: _line(path, places) for path in values}
    chosen = [path for path in values if is_set[path] or not only_set]
    differing = sum(1 for line in is_set.values() if line)
    yield f"{name} is valid: {differing} of {len(values)} settings are set in it, the others are at their defaults."
    for path in chosen:
        origin = f"{name}:{is_set[path]}" if is_set[path] else "default"
        yield ""
        yield f"{path}: {shown(values[path])}    ({origin})"
        if meanings.get(path):
            yield f"    {meanings[path]}"


def _line(path: str, places: Mapping[str, int]) -> int:
    """Where a setting is given, or a group around it that is nothing or a mapping of its own; 0 for nowhere."""
    return places.get(path, 0)
