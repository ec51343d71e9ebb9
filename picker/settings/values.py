"""The values of a configuration as flat paths: for showing them, for telling where they come from, for a diff."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

_SECRET_OPTION = re.compile(r"(?<=[?&])([^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*", re.IGNORECASE)
_MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Change:
    """A setting that differs between two configurations."""

    path: str
    before: object
    after: object

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.before)} -> {shown(self.after)}"


def flat(config: msgspec.Struct) -> dict[str, object]:
    """Each setting's path and value. Lists and free mappings are one value; a group that is not set is None."""
    return dict(_leaves(config, ""))


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if not isinstance(value, msgspec.Struct):
        yield path, msgspec.to_builtins(value)
        return
    # A group that is there and empty is not one that is not there: `tls: {}` encrypts.
    if path and not any(each is not None for each in msgspec.structs.astuple(value)):
        yield path, {}
    for field in msgspec.structs.fields(value):
        yield from _leaves(getattr(value, field.name), f"{path}.{field.encode_name}" if path else field.encode_name)


def changes(before: msgspec.Struct, after: msgspec.Struct) -> list[Change]:
    """What differs, in the order of the settings. A group that comes or goes is a change of each of its settings."""
    old, new = flat(before), flat(after)
    paths = dict.fromkeys((*old, *new))
    return [Change(path, old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)]


def shown(value: object) -> str:
    """A value for people: in one line, not too long, and without the passwords in URLs."""
    value = without_passwords(value)
    text = "none" if value is None else value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = text or '""'
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}... ({len(text)} characters)"


def without_passwords(value: Any) -> Any:
    """A builtin value in which users, passwords and secret options of URLs are crossed out.

    Passwords that are not percent-encoded may hold the very characters that divide a URL: then too much is crossed out.
    """
    if isinstance(value, str):
        return _without_password(value)
    if isinstance(value, Mapping):
        return {key: without_passwords(each) for key, each in value.items()}
    return [without_passwords(each) for each in value] if isinstance(value, list | tuple) else value


def _without_password(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    address, question, query = rest.partition("?")
    if "@" in query:
        return f"{scheme}://***"
    _, at, host = address.rpartition("@")
    options = _SECRET_OPTION.sub(r"\1***", question + query)
    return f"{scheme}://{'***@' if at else ''}{host}{options}"


def lines(text: str) -> Mapping[str, int]:
    """Of a YAML text: the line, from 1, on which each setting stands, by its path; lists are one setting."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return dict(_lines(root, "")) if root is not None else {}


def _lines(node: Any, path: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        inner = f"{path}.{key.value}" if path else str(key.value)
        yield inner, key.start_mark.line + 1
        yield from _lines(value, inner)
